"""A sampler that goes on where it was."""

from shanty.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
