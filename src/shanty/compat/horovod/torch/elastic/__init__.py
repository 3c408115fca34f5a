"""Training that goes back to its last commit: `run`, `TorchState`, `ElasticSampler`."""

from shanty.torch.elastic import ElasticSampler, TorchState, run, run_fn

from . import sampler as sampler
from . import state as state

__all__ = ["ElasticSampler", "TorchState", "run", "run_fn"]
