"""`shanty.torch.elastic`: training that goes back to its last commit, as `hvd.elastic`."""

from shanty.torch.hvd.elastic import (
    ElasticSampler,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TorchState,
    run,
    run_fn,
)

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
    "run_fn",
]
