"""Who is the straggler of a silent run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shanty.runtime.diagnosis.link_check import LinkFault
from shanty.runtime.diagnosis.rendezvous import Meeting
from shanty.runtime.diagnosis.stall_verdict import Standing, judge
from shanty.runtime.messages import HostLoad, Link, RankState

LINK = Link("eth0", carries=True, used=True, bytes=0, errors=0)


LOAD = HostLoad(1.0, 2, 0, 0, (LINK,), tcp=(100, 0), seconds=60.0)


MAIN = ["/w/train.py", 9, "main"]


def rank(number: int, *frames: list[Any], host: str = "a", **told: Any) -> Standing:
    """A rank that waits in MPI_Allreduce, unless told otherwise."""
    usual = {
        "pid": 100 + number,
        "state": "R",
        "ready": 1.0,
        "cpu": 0.9,
        "read": True,
        "call": "MPI_Allreduce",
        "waits": 70.0,
        "still": 70.0,
        "inside": 70.0,
        "through": None,
    }
    threads = [{"current": True, "frames": list(frames) or [MAIN]}]
    return Standing(RankState(host, "0", number, **{**usual, **told}), threads)


def away(number: int, *frames: list[Any], **told: Any) -> Standing:
    """A rank that is not in MPI."""
    return rank(number, *frames, **{"call": "", "waits": 0.0, "still": 0.0, "inside": 0.0, **told})


def what(*ranks: Standing, ended: dict[int, str] | None = None, **load: Any) -> str:
    """The verdict after 60 s; "" for none."""
    hosts = {one.host for one in ranks}
    loads = {host: LOAD._replace(**load) for host in hosts}
    stall = judge(ranks, ended or {}, loads, 60, size=len(ranks) + len(ended or {}))
    return stall.what.removeprefix("no progress for 60 s: ") if stall else ""


TRAIN = ["/w/train.py", 31, "train"]

POLLS = ["/usr/lib/python3.11/multiprocessing/popen_fork.py", 27, "poll"]
JOINS = away(2, POLLS, TRAIN, cpu=0.0, ready=0.1, state="S")


@pytest.mark.parametrize(
    ("straggler", "doing"),
    [
        (away(2, TRAIN), "busy in train (train.py:31)"),
        (away(2, TRAIN, cpu=0.0, ready=0.1, state="S"), "idle in train (train.py:31)"),
        (away(2, TRAIN, state="T"), "stopped, as by SIGSTOP"),
        (rank(2, state="T", waits=0.0, through=62.0), "stopped, as by SIGSTOP"),  # within MPI
        (away(2, TRAIN, cpu=0.01), "ready to run, but gets 1.0 % of a core"),
        (
            away(2, TRAIN, lock=("/w/lock", 101), ready=0.0),
            "waiting in train (train.py:31) for the lock on /w/lock, which rank 1 holds",
        ),
        (
            away(2, ["/v/torch/utils/data/dataloader.py", 5, "_next"], TRAIN),
            "waiting in train (train.py:31) for its DataLoader",
        ),
        (JOINS, "waiting in train (train.py:31) for a process that it has started"),
        (rank(2, TRAIN, call="MPI_Bcast"), "in MPI_Bcast at train (train.py:31)"),
        (rank(2, TRAIN, call="MPI_Finalize"), "at its end, in MPI_Finalize"),
        (rank(2, TRAIN), "in MPI_Allreduce at train (train.py:31)"),
        (rank(2, cpu=0.0), "ready to run, but gets 0.0 % of a core"),
    ],
)
def test_the_straggler(straggler: Standing, doing: str) -> None:
    said = what(rank(0), rank(1), straggler)
    where = " at main (train.py:9)" if doing.startswith("in MPI_Allreduce") else ""
    assert said == f"rank 2 on a is {doing}, ranks 0, 1 wait in MPI_Allreduce{where}"


DDP = ["/v/torch/nn/parallel/distributed.py", 5, "_sync_buffers"]
SAVE = [
    ["/v/torch/distributed/distributed_c10d.py", 1, "gather_object"],
    ["/v/torch/distributed/checkpoint/state_dict_saver.py", 2, "save"],
    ["/v/torch/distributed/checkpoint/utils.py", 3, "inner_func"],
    ["/v/torch/distributed/checkpoint/logger.py", 4, "wrapper"],
]


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        ([DDP], "torch's exchange of buffers"),
        ([["/v/torch/autograd/graph.py", 5, "backward"]], "torch's exchange of gradients"),
        (SAVE, "torch save"),
    ],
)
def test_calls_of_torch_by_their_frames(frames: list[list[Any]], call: str) -> None:
    usual = {"state": "S", "cpu": 0.08, "ready": 0.3, "call": "", "waits": 0.0}
    assert rank(0, *frames, TRAIN, **usual).call == call


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        ("MPI_Gather", "compare what the ranks pass to that call: the root"),
        ("MPI_Ialltoall", ""),
        ("MPI_Waitall", "one of the requests that they wait for has no counterpart"),
        ("torch recv", "nobody sends what they wait for"),
        ("torch all_reduce", "compare what the ranks pass to that call: the root"),
        ("torch barrier", ""),
    ],
)
def test_what_to_do_where_all_wait_in_one_call(call: str, fix: str) -> None:
    found = judge([rank(0, call=call), rank(1, call=call)], {}, {"a": LOAD}, 60, size=2)
    assert found is not None
    assert (fix or "find out where the ranks stand") in found.fix


def test_a_rank_that_waits_for_a_process_which_it_has_forked() -> None:
    """Between hosts a child that calls MPI hangs there, and its parent waits for its end."""
    stall = judge([rank(0), JOINS], {}, {"a": LOAD}, 60, size=2, forked={2: "train.py:30"})
    assert stall is not None
    assert "for a process that it has started, by a fork after MPI_Init, rank 0 waits" in stall.what
    assert "get_context('spawn')" in stall.fix


def test_a_rank_in_c_code_that_does_not_return() -> None:
    """As where MPI has overwritten memory with a message that is longer than its buffer."""
    stuck = away(1, TRAIN)
    stuck.locked = True
    stall = judge([rank(0), stuck], {}, {"a": LOAD}, 60, size=2)
    assert stall is not None
    assert "busy in train (train.py:31) with Python's lock (GIL) held, so in C code" in stall.what
    assert "compare the message with its buffer" in stall.fix


def test_ranks_that_wait_for_one_that_is_through_with_a_cell() -> None:
    """It will not come, unlike one that still computes, or that another one may still reach."""
    through = away(2, ["/v/shanty/tasks/cells.py", 140, "_wait_for_cell"], cpu=0.0, ready=0.0)
    stall = judge([rank(0), rank(1), through], {}, {"a": LOAD}, 60, size=3)
    assert stall is not None and stall.final
    assert "rank 2 on a is through with this cell of the notebook, ranks 0, 1 wait" in stall.what
    assert "make the same calls in a cell" in stall.fix
    stall = judge([rank(0), away(1, TRAIN), through], {}, {"a": LOAD}, 60, size=3)
    assert stall is not None and not stall.final


def test_the_worst_comes_first() -> None:
    said = what(rank(0), rank(1, TRAIN, call="MPI_Bcast"), away(2, TRAIN), rank(3), rank(4))
    assert said.startswith(
        "rank 2 on a is busy in train (train.py:31), rank 1 on a is in MPI_Bcast"
    )


def test_a_rank_in_mpi_without_cpu_is_not_blamed_where_another_one_explains_it() -> None:
    """It spins in MPI_Allreduce and yields, on a machine where others compute."""
    said = what(rank(0), rank(1, cpu=0.0), away(2, TRAIN))
    assert said == "rank 2 on a is busy in train (train.py:31), ranks 0, 1 wait in MPI_Allreduce"


def test_a_rank_that_has_ended() -> None:
    assert what(rank(0), rank(1), ended={2: "b"}).startswith("rank 2 on b is gone: it has ended")


@pytest.mark.parametrize(
    "ranks",
    [
        [away(0), away(1)],  # nobody is in MPI
        [rank(0), rank(1, waits=20.0)],  # the last one has come
        [rank(0), away(1, through=3.0)],  # it comes and goes
        [rank(0, waits=40.0), away(1)],  # not for long enough
    ],
)
def test_what_is_no_stall(ranks: list[Standing]) -> None:
    assert what(*ranks) == ""


def test_all_in_one_call() -> None:
    both = rank(0), rank(1, host="b")
    assert what(*both) == "all ranks wait in MPI_Allreduce"
    assert what(*both, own=1 << 30) == ""  # something large is under way
    wrong = {"a": LOAD, "b": LOAD._replace(links=(LINK._replace(carries=False),))}
    down = judge(both, {}, wrong, 60)
    assert down is not None
    assert down.what.endswith(": all ranks wait in MPI_Allreduce; link eth0 of b is down")
    assert (down.stragglers, down.host) == ((1,), "b")
    lost = "all ranks wait in MPI_Allreduce; 30 of the 100 packets that a sent were lost"
    assert what(*both, tcp=(100, 30)) == lost


def test_what_others_send_over_the_links_says_nothing() -> None:
    """Another program's traffic, and for ranks on one host the links altogether."""
    busy = LINK._replace(bytes=1 << 30)
    assert what(rank(0), rank(1, host="b"), links=(busy,)) == "all ranks wait in MPI_Allreduce"
    unused = LINK._replace(name="docker0", carries=False, errors=7)
    said = what(rank(0), rank(1), links=(busy, unused), tcp=(100, 30))
    assert said == "all ranks wait in MPI_Allreduce"


def test_a_launcher_that_is_stopped() -> None:
    said = what(rank(0, call="MPI_Finalize"), rank(1), halted=((7, "mpirun"),))
    assert said == (
        "the launcher's mpirun (pid 7) on host a is stopped, as by SIGSTOP; "
        "ranks 0, 1 wait in MPI_Allreduce"
    ).replace("MPI_Allreduce", "MPI_Finalize")


def test_a_port_at_which_no_other_program_arrives() -> None:
    found = judge([rank(0, call="MPI_Comm_accept")], {}, {}, 60, size=1)
    assert found is not None
    assert "start both by one run" in found.fix


INIT = "torch.distributed.init_process_group"
MEETING = Meeting(INIT, 0.0, 2, 0, "h:1")


def meets(number: int, seconds: float = 70.0, **more: Any) -> Standing:
    """A rank in a rendezvous, in which it connects again and again."""
    meeting = MEETING._replace(place=number)._replace(**more)
    seen = RankState("a", "0", number, state="S", wait=(INIT, seconds))
    frames = [["/w/train.py", 10 + number, "main"]]
    return Standing(seen, [{"current": True, "frames": frames}], meeting=meeting)


def test_a_rendezvous_that_a_rank_does_not_reach() -> None:
    said = what(meets(0), away(1, TRAIN))
    assert said == f"rank 1 on a is busy in train (train.py:31), rank 0 waits in {INIT} for 2 ranks"
    assert what(meets(0), meets(1, 20.0)) == ""  # it has come, later
    assert what(meets(0), ended={1: "a"}) == ""  # the run ends because of that


def test_a_rendezvous_in_which_ranks_do_not_meet() -> None:
    """Those that call it at different lines are in one call all the same."""
    assert what(meets(0), meets(1)) == f"all ranks wait in {INIT} for 2 ranks at h:1"
    said = what(meets(0, size=4), meets(1, size=4))
    assert said == f"ranks 0, 1 wait in {INIT} for 4 ranks, and this run has 2"
    found = judge([meets(0, size=4)], {1: "a"}, {}, 60, size=2)
    assert found is not None
    assert found.what.endswith(f": rank 0 waits in {INIT} for 4 ranks, and this run has 2")


def test_a_key_that_no_rank_sets() -> None:
    waiting = meets(1, what="FileStore.get", size=0, keys="'a'")
    for others, said in (
        ((away(0, TRAIN),), "rank 0 on a is busy in train (train.py:31)"),
        ((), "rank 0 on b is gone: it has ended"),
    ):
        found = judge([waiting, *others], {} if others else {0: "b"}, {}, 60, size=2)
        assert found is not None
        call = "rank 1 waits in FileStore.get for the key 'a'"
        assert found.what == f"no progress for 60 s: {said}, {call}"
        assert found.fix.startswith("let a rank set the key")


def test_a_slow_start_of_mpi_is_no_stall() -> None:
    assert what(rank(0, call="MPI_Init"), rank(1, call="MPI_Init")) == ""
    assert what(rank(0, call="MPI_Init"), away(1, TRAIN)).startswith("rank 1 on a is busy in train")


CONSENSUS = (
    ["/v/shanty/xgboost/consensus.py", 111, "_wait"],
    ["/v/shanty/xgboost/consensus.py", 70, "conclude"],
    ["/v/shanty/compat/xgboost_rabit/calls.py", 9, "train"],
    TRAIN,
)


def test_a_rank_that_waits_for_others_in_shanty_xgboost() -> None:
    """It naps, and looks into MPI in between; the one that has ended is to be named."""
    for seen in ({}, {"call": "MPI_Iprobe"}, {"through": 3.0}):
        waiting = away(1, *CONSENSUS, cpu=0.01, ready=0.0, **seen)
        at_its_end = rank(0, TRAIN, call="MPI_Finalize")
        said = what(at_its_end, waiting)
        assert said == "rank 0 on a is at its end, in MPI_Finalize, rank 1 waits in shanty.xgboost"
    assert waiting.place == "train (train.py:31)"
    assert what(waiting, rank(0), ended={2: "b"}).startswith("rank 2 on b is gone")
    assert what(waiting, rank(0), away(2, TRAIN)).startswith("rank 2 on a is busy in train")
    assert what(waiting, away(0)) == ""  # nobody has measured how long it waits


def test_a_rank_that_loads_for_shanty_xgboost_is_at_work() -> None:
    """What is done `together` has the same module further out."""
    loading = ["/v/shanty/xgboost/text/files.py", 5, "read"]
    together = ["/v/shanty/xgboost/consensus.py", 150, "together"]
    assert what(rank(0), away(1, loading, together, TRAIN)).startswith(
        "rank 1 on a is busy in train (train.py:31)"
    )


@pytest.mark.parametrize(("number", "whom"), [(0, "rank 1, 2"), (1, "rank 0, which waits for all")])
def test_a_rank_says_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, whom: str
) -> None:
    pytest.importorskip("xgboost")
    from shanty.xgboost import consensus
    from shanty.xgboost.communication import Communicator

    monkeypatch.setattr(consensus, "_LONG", -1)
    comm: Any = SimpleNamespace(rank=number, size=3, iprobe=lambda **_: False)
    looks = iter([False, False, True])
    waiting = consensus.Consensus(Communicator(comm), "training")
    waiting._outcomes[0] = None
    waiting._wait(lambda: next(looks))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"shanty.xgboost: training: rank {number} is still waiting for {whom}")


def test_collectives_of_torch() -> None:
    frames = (
        ["/v/torch/distributed/distributed_c10d.py", 7, "all_reduce"],
        ["/v/torch/distributed/c10d_logger.py", 8, "wrapper"],
        MAIN,
    )
    waiting = away(0, *frames, still=70.0)
    assert (waiting.call, waiting.waits) == ("torch all_reduce", 70.0)
    assert away(0, *frames).waits == 0.0


@pytest.mark.parametrize(
    "frame",
    [["/v/shanty/torch/hvd/calls.py", 7, "poll"], ["/v/shanty/torch/work.py", 7, "is_completed"]],
)
def test_a_loop_that_polls_is_no_wait(frame: list[Any]) -> None:
    """It asks again and again, from within our code or the script's, and keeps the others."""
    inner = ["/v/shanty/collectives/tensor_queue.py", 7, "ring"]
    polls = away(1, inner, frame, MAIN, still=0.1)
    assert polls.call == ""
    assert "rank 1 on a is busy in main (train.py:9)" in what(rank(0, MAIN), polls)


def test_a_rank_that_cannot_be_looked_at_is_blamed_last() -> None:
    unread = away(1, ["/v/torch/distributed/distributed_c10d.py", 7, "recv"], MAIN, read=False)
    assert what(rank(0), unread) == (
        "rank 1 on a is busy in main (train.py:9), rank 0 waits in MPI_Allreduce"
    )
    assert what(rank(0), unread, away(2, TRAIN)).startswith("rank 2 on a is busy in train")
    assert what(unread, away(2, read=False)) == ""


FAULT = LinkFault("a and b do not reach each other", "check the firewalls", "b")


def cut_off(*ranks: Standing, ended: dict[int, str] | None = None) -> str:
    """The verdict where two hosts do not reach each other."""
    hosts = {one.host for one in ranks}
    stall = judge(ranks, ended or {}, dict.fromkeys(hosts, LOAD), 60, FAULT)
    assert stall is not None
    if stall.fix == FAULT.fix:
        assert stall.stragglers == ()
        assert stall.host == "b"
    return stall.what.removeprefix("no progress for 60 s: ")


def test_hosts_that_do_not_reach_each_other_come_first() -> None:
    assert cut_off(rank(0), rank(1, host="b")) == (
        "a and b do not reach each other; all ranks wait in MPI_Allreduce"
    )
    assert cut_off(rank(0), rank(1), rank(2, call="MPI_Bcast", host="b")) == (
        "a and b do not reach each other; rank 2 on b is in MPI_Bcast at main (train.py:9), "
        "ranks 0, 1 wait in MPI_Allreduce"
    )
    assert cut_off(rank(0), ended={1: "b"}).startswith("a and b do not reach each other; rank 1")


def test_a_rank_that_is_stopped_is_stopped_whatever_the_network_does() -> None:
    stopped = away(1, state="T", host="b")
    assert cut_off(rank(0), stopped).startswith("rank 1 on b is stopped, as by SIGSTOP")


def test_data_that_moves_slowly_is_no_order_of_calls() -> None:
    ranks = rank(0), rank(1), rank(2, call="MPI_Bcast", host="b")
    slow = 60 * (500 << 10)
    assert what(*ranks, own=slow).startswith(
        "rank 2 on b is in MPI_Bcast at main (train.py:9), ranks 0, 1 wait in MPI_Allreduce; "
        "data still moves, at only 500 KiB/s"
    )
    assert what(*ranks, own=60 * (2 << 20)) == ""
    assert "data still moves" in what(rank(0), rank(1, host="b"), own=slow)


def graph(number: int, request: str, seconds: float = 70.0, **told: Any) -> Standing:
    """A rank whose framework's threads wait for a request, while its main thread sleeps."""
    usual = {"state": "S", "ready": 0.1, "cpu": 0.08, "wait": (request, seconds)}
    return away(number, ["/w/train.py", 9, "main"], **{**usual, **told})


def test_what_runs_the_training_is_not_a_call_of_it() -> None:
    """A rank whose framework waits, and is busy meanwhile, is within hvd.elastic.run all the time.

    Its main thread is in C code, so it has answered no signal for as long as it has been there.
    """
    around = [["/v/shanty/collectives/elastic.py", 244, "_train"]]
    inside = [["/v/tensorflow/python/eager/execute.py", 53, "quick_execute"], TRAIN, *around]
    busy = [away(number, *inside, cpu=0.8, ready=0.1, state="S") for number in (0, 2)]
    asleep = graph(3, "allreduce.gradients.0")
    stopped = away(1, state="T", cpu=0.0, ready=0.0)
    assert all(each.call == "" for each in busy)
    assert what(*busy, asleep, stopped).startswith("rank 1 on a is stopped, as by SIGSTOP")


def test_ranks_that_wait_for_requests_in_other_threads() -> None:
    said = what(graph(0, "allreduce.a"), graph(1, "allreduce.a"), graph(2, "allreduce.b"))
    assert (
        said == "rank 2 on a is in allreduce.b at main (train.py:9), ranks 0, 1 wait in allreduce.a"
    )
    busy = away(1, TRAIN)
    said = what(graph(0, "allreduce.a"), busy)
    assert said == "rank 1 on a is busy in train (train.py:31), rank 0 waits in allreduce.a"


def test_a_request_that_waits_while_the_rank_computes_is_no_stall() -> None:
    assert not what(graph(0, "allreduce.a", cpu=1.8), away(1, TRAIN))
    assert not what(graph(0, "allreduce.a", 5.0), away(1, TRAIN))
