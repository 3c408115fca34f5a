"""Training that goes back to its last commit after a failure, and goes on in another run.

Horovod's elastic API. The ranks of a run stay the same: nobody joins or leaves while it lasts.
"""

from shanty.torch.hvd.elastic.running import run, run_fn
from shanty.torch.hvd.elastic.sampler import ElasticSampler
from shanty.torch.hvd.elastic.state import HostsUpdatedInterrupt, ObjectState, State
from shanty.torch.hvd.elastic.torch_state import TorchState

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
    "run_fn",
]
