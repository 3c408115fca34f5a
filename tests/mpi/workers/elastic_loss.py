"""Trains for 60 steps by `hvd.elastic` with a commit every 5; some ranks are lost on the way.

Arguments: how (kill, wrapper, segv, exit0, exit1, exception, sysexit, stop, later, recovery, split,
unheard, back), and which ranks, by the numbers that they begin with, as 1,2; step 23 is theirs.
With `later` the second one is lost at step 43, with `recovery` while the others leave the first one
behind. With `split` those in the list and the others lose sight of each other, and each side wants
to go on; with `unheard` the first is lost, and the controller does not hear the second. None comes
back, but with `back`: then each, or several as 0+2, is lost when all are there, and the training
goes on until they all are. With `unable` the rank that is to come back fails, and the training ends
after that. Each rank that comes to the end prints one line of JSON.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

FAILED = Path(os.environ["SHANTY_RUN_DIR"], "unable")
if sys.argv[1] == "unable" and "SHANTY_JOINS" in os.environ:
    FAILED.touch()
    raise ImportError("planted")

import torch  # noqa: E402

import shanty.torch as hvd  # noqa: E402
from shanty.collectives import confirmation, regrowth, survivors  # noqa: E402

HOW, WORDS = sys.argv[1], [word for word in sys.argv[2].split(",") if word]
LOST = [int(word.partition("+")[0]) for word in WORDS]
RANKS, STEPS, AT = 4, 60, 23
doomed = {AT: LOST[:1], 43: LOST[1:]} if HOW == "later" else {AT: LOST}  # by their step
if HOW in ("recovery", "unheard"):
    doomed = {AT: LOST[:1]}
if HOW == "back":
    doomed = {}
elif HOW != "unable":
    regrowth.Regrowth.look = lambda *_: False

torch.set_num_threads(1)
model = torch.nn.Linear(1000, 4)
optimizer = None
if HOW == "back":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)  # takes seconds the first time
hvd.init()
first = int(os.environ["SHANTY_SEAT"])
if HOW == "split":
    doomed, side = {}, survivors._living.Split(first in LOST)
    everyone = survivors._living.Dup()
sampler = hvd.elastic.ElasticSampler(range(4 * STEPS), shuffle=False)
state = hvd.elastic.TorchState(model=model, sampler=sampler, step=0, lost=0)
if optimizer is not None:
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
begins, resets = [], []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def lose():
    """End, or stop, this process."""
    if HOW == "exception":
        raise ValueError("planted")
    if HOW == "sysexit":
        sys.exit(0)
    if HOW in ("exit0", "exit1"):
        os._exit(int(HOW[-1]))
    if HOW == "wrapper":  # what waits for this process, and would report its end
        os.kill(os.getppid(), signal.SIGKILL)
        return
    number = {"segv": signal.SIGSEGV, "stop": signal.SIGSTOP}.get(HOW, signal.SIGKILL)
    threading.Timer(0.002, os.kill, (os.getpid(), number)).start()  # in the next collective


if HOW == "recovery" and first == LOST[-1]:
    survivors.shrink = die
if HOW == "unheard" and first == LOST[-1]:
    confirmation._PATIENCE, confirmation._REPORTS = 1.0, "NOWHERE"
    os.environ["NOWHERE"] = os.devnull


def part():
    """Make the ranks of this side those that are left.

    All have come here before: what the first one revokes ends the calls of the others.
    """
    everyone.Barrier()
    survivors._living = survivors._active = side
    survivors._seats = [k for k in range(RANKS) if (k in LOST) == (first in LOST)]
    raise hvd.HorovodInternalError("planted")


@hvd.elastic.run
def train(state):
    begins.append((state.step, hvd.rank(), hvd.size()))
    whole, seen = 0, HOW != "unable"  # steps with all ranks; whether all know of the failure
    while (
        state.step < STEPS or not seen or (HOW == "back" and (state.lost < len(LOST) or whole < 20))
    ):
        if not seen:
            known = torch.tensor(float(FAILED.exists()))
            seen = bool(hvd.allreduce(known, name="seen", op=hvd.Min))
        model.zero_grad()
        model(torch.ones(8, 1000)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        else:
            for name, parameter in model.named_parameters():
                parameter.data -= 0.001 * hvd.allreduce(parameter.grad, name=name)
        state.step += 1
        if state.step % 5 == 0:
            state.commit()
        whole += hvd.size() == RANKS
        if HOW == "back" and whole == 20 and state.lost < len(LOST):
            state.lost, whole = state.lost + 1, 0
            state.commit()
            if str(first) in WORDS[state.lost - 1].split("+"):
                die()
        if HOW == "split" and state.step == AT and hvd.size() == 4:
            part()
        if first in doomed.get(state.step, ()):
            lose()


train(state)
total = sum(each.detach().double().sum() for each in model.parameters())
place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
told = {
    "first": first, "rank": hvd.rank(), "size": hvd.size(), "place": place, "begins": begins,
    "resets": resets, "sum": total.item(), "share": len(sampler),
}  # fmt: skip
print(json.dumps(told), flush=True)
