"""A sampler that goes on where it was."""

from shanty.torch.hvd.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
