"""A sampler that continues where it stopped."""

from shanty.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
