"""Training that goes back to its last commit: `run`, `TorchState`, `ElasticSampler`."""

from importlib import import_module

from shanty.torch.elastic import ElasticSampler, TorchState, run, run_fn

for _part in ("sampler", "state"):
    import_module(f"{__name__}.{_part}")

__all__ = ["ElasticSampler", "TorchState", "run", "run_fn"]
