"""Training that goes back to its last commit, without ranks: states, samplers, files, retries."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from shanty.collectives import commits, world
from shanty.collectives.errors import HorovodInternalError
from shanty.torch import elastic
from shanty.torch.elastic import FORMAT
from shanty.torch.hvd import functions


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A world of one without MPI, and a folder of one's own for commits."""
    monkeypatch.setattr(world, "size", lambda: 1)
    monkeypatch.setattr(world, "rank", lambda: 0)
    monkeypatch.setattr(functions, "broadcast_object", lambda value: value)
    for name in ("broadcast_parameters", "broadcast_optimizer_state"):
        monkeypatch.setattr(functions, name, lambda *_, **__: None)
    monkeypatch.setenv(commits.FOLDER, str(tmp_path / "commits"))
    monkeypatch.delenv(commits.RESUME, raising=False)
    monkeypatch.setattr(commits, "_calls", commits.Counter())


def plain(**values: Any) -> elastic.ObjectState:
    return elastic.ObjectState(lambda value: value, lambda: 0, **values)


def files() -> list[str]:
    folder = Path(os.environ[commits.FOLDER])
    return sorted(path.suffix for path in folder.iterdir()) if folder.exists() else []


# ------------------------------------------------------------------------------------- states


def test_objects_go_back_to_what_was_saved() -> None:
    state = plain(epoch=1, best=None)
    state.epoch, state.best = 2, 0.5
    state.restore()
    assert (state.epoch, state.best) == (1, None)
    state.epoch = 3
    state.commit()
    state.epoch = 4
    state.restore()
    assert state.epoch == 3
    other = elastic.ObjectState(lambda _: {"epoch": 9}, lambda: 1, epoch=1)
    other.sync()  # takes what rank 0 has saved
    assert other.epoch == 9


def test_callbacks_come_in_order_after_reset() -> None:
    called: list[str] = []

    class Mine(elastic.ObjectState):
        def reset(self) -> None:
            called.append("reset")

    state = Mine(lambda value: value, lambda: 0)
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.on_reset()
    assert called == ["reset", "a", "b"]


@pytest.mark.parametrize(
    ("updates", "skips"), [([1], True), ([2], False), ([1, 2], False), ([2, 1], False)]
)
def test_hosts_that_change(updates: list[int], skips: bool) -> None:
    state = plain()
    for number, update in enumerate(updates):
        state.on_hosts_updated(number + 1.0, update)
    with pytest.raises(elastic.HostsUpdatedInterrupt) as interrupt:
        state.commit()
    assert interrupt.value.skip_sync is skips
    state.commit()  # told once
    state.on_hosts_updated(1.0, 2)  # no news
    state.check_host_updates()


def test_rank_0_tells_the_others_that_hosts_change() -> None:
    told = [(0.0, 5.0, 1), (5.0, 5.0, 0), (5.0, 7.0, 3)]
    state = elastic.ObjectState(lambda _: told.pop(0), lambda: 1)
    state.on_hosts_updated(9.0, 2)  # this rank's own message does not count
    for skips in (True, None, False):
        if skips is None:
            state.check_host_updates()
            continue
        with pytest.raises(elastic.HostsUpdatedInterrupt) as interrupt:
            state.check_host_updates()
        assert interrupt.value.skip_sync is skips


def trained(momentum: float = 0.9) -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def weights(model: Any) -> list[list[float]]:
    return [parameter.detach().reshape(-1).tolist() for parameter in model.parameters()]


def test_a_model_and_its_optimizer_go_back_twice() -> None:
    """Steps after a restore must not change what was saved: optimizers keep what they are given."""
    model, optimizer = trained()
    state = elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    before = weights(model)
    step(model, optimizer)
    after = weights(model)
    for _ in range(3):
        state.restore()
        assert weights(state.model) == before
        step(model, optimizer)
        assert weights(model) == after


def test_several_models_by_any_name_and_what_is_assigned() -> None:
    one, two = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    state = elastic.TorchState(generator=torch.nn.Linear(1, 1), judge=two, epoch=1)
    assert state.model is None
    state.generator = one
    saved = weights(one) + weights(two)
    with torch.no_grad():
        one.weight.zero_()
        two.bias.zero_()
    state.restore()
    assert weights(one) + weights(two) == saved
    assert state.generator is one


def test_what_came_from_rank_0_is_what_it_goes_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new rank that is the only one left after the next loss must not begin anew."""
    state = elastic.TorchState(model=torch.nn.Linear(1, 1, bias=False), step=0)
    saved = elastic.TorchState(model=torch.nn.Linear(1, 1, bias=False))
    monkeypatch.setattr(
        functions, "broadcast_parameters", lambda own, **_: own["weight"].fill_(7.0)
    )
    state.sync()
    with torch.no_grad():
        state.model.weight.fill_(9.0)
    state.restore()
    assert weights(state.model) == [[7.0]]
    assert weights(saved.model) != [[7.0]]


def test_a_handler_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        count = 1

    class Handler(elastic.StateHandler):
        def save(self) -> None:
            self.kept = self.value.count

        def restore(self) -> None:
            self.value.count = self.kept

        def sync(self) -> None:
            pass

    registry = [*elastic.get_handler_registry(), (Counter, Handler)]
    monkeypatch.setattr(elastic, "_registry", elastic.get_handler_registry())
    elastic.set_handler_registry(registry)
    state = elastic.TorchState(counter=Counter())
    state.commit()
    state.counter.count = 5
    state.restore()
    assert state.counter.count == 1
    assert state.kept() is None  # nobody knows how to write it down


# ------------------------------------------------------------------------------------ sampler


def deal(
    monkeypatch: pytest.MonkeyPatch, ranks: int, prepare: Callable[[elastic.ElasticSampler], None]
) -> list[list[int]]:
    """What each of so many ranks gets of 20 samples."""
    dealt = []
    monkeypatch.setattr(world, "size", lambda: ranks)
    for rank in range(ranks):
        monkeypatch.setattr(world, "rank", lambda rank=rank: rank)
        sampler = elastic.ElasticSampler(range(20), seed=5)
        prepare(sampler)
        dealt.append(list(sampler))
        assert len(sampler) == len(dealt[-1])
    return dealt


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_sample_comes_once(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    dealt = deal(monkeypatch, ranks, lambda sampler: None)
    together = [sample for each in dealt for sample in each]
    assert set(together) == set(range(20))
    assert len(together) == -(-20 // ranks) * ranks
    again = deal(monkeypatch, ranks, lambda sampler: sampler.set_epoch(1))
    assert again != dealt


def test_it_goes_on_with_another_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    first = deal(monkeypatch, 2, lambda sampler: None)
    done = {sample for each in first for sample in each[:4]}
    monkeypatch.setattr(world, "size", lambda: 2)
    sampler = elastic.ElasticSampler(range(20), seed=5)
    sampler.record_batch(0, 4)
    rest = deal(monkeypatch, 3, lambda other: other.load_state_dict(sampler.state_dict()))
    assert {sample for each in rest for sample in each} == set(range(20)) - done
    assert [len(each) for each in rest] == [4, 4, 4]


def test_samples_that_are_recorded_as_in_older_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "size", lambda: 2)
    sampler = elastic.ElasticSampler(range(20), seed=5)
    mine = list(sampler)[:3]
    sampler.record_indices(mine)
    assert sampler.processed_num == 6
    assert set(mine) < sampler.processed_indices
    sampler.reset()
    assert sampler.processed_indices.isdisjoint(sampler.remaining_indices)
    sampler.set_epoch(1)
    assert sampler.processed_indices == set()


def test_fewer_samples_left_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    left = {"epoch": 0, "processed_num": 19}
    dealt = deal(monkeypatch, 4, lambda sampler: sampler.load_state_dict(left))
    assert [len(each) for each in dealt] == [1, 1, 1, 1]
    none = {"epoch": 0, "processed_num": 20}
    assert deal(monkeypatch, 4, lambda sampler: sampler.load_state_dict(none)) == [[]] * 4
    assert elastic.ElasticSampler(range(4), shuffle=False).remaining_indices == [0, 1, 2, 3]


# -------------------------------------------------------------------------------- in one run


def test_a_failure_takes_it_back(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[int] = []
    resets: list[int] = []

    def train(state: Any, more: int) -> int:
        begun.append(state.step)
        while state.step < 4:
            state.step += 1
            if state.step == 2:
                state.commit()
            if state.step == 3 and len(begun) == 1:
                raise HorovodInternalError("gone")
        return int(state.step) + more

    state = plain(step=0)
    assert elastic.run_fn(train, lambda: resets.append(state.step))(state, more=10) == 14
    assert begun == [0, 2]
    assert resets == [2]
    assert "goes back to its last commit: gone" in capsys.readouterr().err
    assert files() == []


def test_the_order_of_a_reset() -> None:
    """As Horovod documents it; also where another failure comes in the midst of it."""
    called: list[str] = []
    failures = [HorovodInternalError("in train"), HorovodInternalError("in a callback")]

    class Mine(elastic.ObjectState):
        def restore(self) -> None:
            called.append("restore")

        def save(self) -> None:
            called.append("save")

        def sync(self) -> None:
            called.append("sync")

        def reset(self) -> None:
            called.append("state")

    def train(_: Any) -> str:
        called.append("train")
        if failures:
            raise failures.pop(0)
        if called.count("train") < 4:
            raise elastic.HostsUpdatedInterrupt(called.count("train") == 3)
        return "done"

    def callback() -> None:
        called.append("callback")
        if failures:
            raise failures.pop(0)

    state = Mine(lambda value: value, lambda: 0)
    state.register_reset_callbacks([callback])
    assert elastic.run_fn(train, lambda: called.append("init"))(state) == "done"
    begin, again = ["sync", "train"], ["restore", "init", "state", "callback"]
    added, removed = ["save", "init", "state", "callback"], ["init", "state", "callback", "train"]
    assert called == [*begin, *again, *again, *begin, *added, *begin, *removed]


def test_a_change_of_hosts_between_commits_takes_nothing_back() -> None:
    seen: list[int] = []

    def train(state: Any) -> None:
        seen.append(state.step)
        if len(seen) == 1:
            state.step = 5
            raise elastic.HostsUpdatedInterrupt(False)

    elastic.run_fn(train, lambda: None)(plain(step=0))
    assert seen == [0, 5]


def test_it_is_not_tried_for_ever() -> None:
    begun: list[int] = []

    def train(state: Any) -> None:
        begun.append(state.step)
        if len(begun) < 3:
            state.step += 1
            state.commit()  # each time a little further
        raise HorovodInternalError("again")

    with pytest.raises(HorovodInternalError, match="again"):
        elastic.run_fn(train, lambda: None)(plain(step=0))
    assert begun == [0, 1, 2, 2, 2]


def test_a_change_of_hosts_keeps_what_was_not_committed() -> None:
    seen: list[int] = []

    def train(state: Any) -> None:
        seen.append(state.step)
        state.step = 5
        raise elastic.HostsUpdatedInterrupt(True) if len(seen) == 1 else KeyError("a mistake")

    with pytest.raises(KeyError):  # other errors are not caught
        elastic.run_fn(train, lambda: None)(plain(step=0))
    assert seen == [0, 5]


# -------------------------------------------------------------------------- from run to run


class Killed(Exception):  # noqa: N818
    """Ends a training as an end of the process would: nothing of it is caught."""


def begin(until: int, die_at: int | None = None, name: str = "train") -> list[int]:
    """Train a model to step `until`, with a commit every 2 steps; returns where it began."""
    begun: list[int] = []

    def train(state: Any) -> None:
        begun.append(state.step)
        while state.step < until:
            if state.step == die_at:
                raise Killed
            state.step += 1
            if state.step % 2 == 0:
                state.commit()

    train.__qualname__ = name
    commits._calls.clear()  # as in a process of its own
    model, optimizer = trained()
    state = elastic.TorchState(model=model, optimizer=optimizer, step=0)
    with contextlib.suppress(Killed):
        elastic.run_fn(train, lambda: None)(state)
    return begun


def test_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin(10, die_at=5) == [0]
    assert files() == [".lock", ".pt"]
    assert begin(10) == [4]
    said = capsys.readouterr().err
    assert "goes on from the commit of 20" in said
    assert os.environ[commits.FOLDER] in said
    assert said.count("SHANTY_RESUME=0 starts afresh") == 1
    assert files() == []
    assert begin(10, die_at=5) == [0]
    monkeypatch.setenv(commits.RESUME, "0")
    assert begin(10, die_at=1) == [0]
    monkeypatch.delenv(commits.RESUME)
    assert begin(10) == [0]  # the old one is gone


@pytest.mark.parametrize("what", ["function", "arguments", "script", "run", "folder"])
def test_another_command_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    begin(10, die_at=5)
    if what == "arguments":
        monkeypatch.setattr(sys, "argv", [sys.argv[0], "--lr", "0.1"])
    elif what == "script":
        monkeypatch.setattr(sys, "argv", ["other.py"])
    elif what == "run":
        monkeypatch.setenv("SHANTY_JOB", "named:/elsewhere")
    elif what == "folder":
        monkeypatch.chdir(tmp_path)
    assert begin(10, name="other" if what == "function" else "train") == [0]
    assert commits.command_key("again") != commits.command_key("again")  # of a second call


def test_what_it_wrote_does_not_fit() -> None:
    begin(10, die_at=5)
    commits._calls.clear()

    def train(state: Any) -> None:
        pass

    train.__qualname__ = "train"
    state = elastic.TorchState(model=torch.nn.Linear(3, 3), step=0)
    with pytest.raises(
        RuntimeError, match=r"(?s)cannot be taken up.*SHANTY_RESUME=0 starts afresh"
    ):
        elastic.run_fn(train, lambda: None)(state)
    assert ".pt" in files()


def test_two_at_the_same_time(capsys: pytest.CaptureFixture[str]) -> None:
    first = commits.Store(commits.commit_path("train"), FORMAT)
    commits._calls.clear()
    first.write({"a": 1})
    second = commits.Store(commits.commit_path("train"), FORMAT)
    taken: list[Any] = []
    second.resume(taken.append)
    second.write({"a": 2})
    second.remove()
    second.close()
    assert taken == []
    assert "under way already" in capsys.readouterr().err
    assert torch.load(first.path) == {"a": 1}
    first.close()


def test_what_cannot_be_written_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    store = commits.Store(commits.commit_path("train"), FORMAT)
    store.write({"a": lambda: 1})
    store.write({"a": lambda: 1})
    assert capsys.readouterr().err.count("commits stay in memory from now on") == 1
    assert files() == [".lock"]
    store.close()


def test_a_state_of_ones_own_stays_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    class Mine(elastic.State):
        value = saved = 0

        def save(self) -> None:
            self.saved = self.value

        def restore(self) -> None:
            self.value = self.saved

        def sync(self) -> None:
            pass

    def train(state: Any) -> int:
        for state.value in (1, 2):
            state.commit()
        return int(state.saved)

    assert elastic.run_fn(train, lambda: None)(Mine(lambda value: value, lambda: 0)) == 2
    assert capsys.readouterr().err.count("commits stay in memory") == 1
    assert files() == []


def test_a_folder_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(commits.FOLDER, str(tmp_path / "file"))
    assert begin(4) == [0]
    assert "commits stay in memory" in capsys.readouterr().err


def test_long_writes_take_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    written: list[float] = []

    def save(kept: Any, file: Any) -> None:
        written.append(now[0])
        now[0] += kept

    monkeypatch.setattr(torch, "save", save)
    store = commits.Store(commits.commit_path("train"), FORMAT)
    for _ in range(5):
        store.write(0.01)  # short ones always
    assert len(written) == 5
    store.write(2.0)
    for _ in range(30):
        now[0] += 1.0
        store.write(2.0)
    assert len(written) == 7  # in 30 s: the one that had begun, and one after 20 s
    store.close()


def test_a_process_that_is_killed_amid_a_write_leaves_the_old_commit(tmp_path: Path) -> None:
    code = (
        "import os, torch\n"
        "from shanty.collectives.commits import Store, commit_path\n"
        "from shanty.torch.elastic import FORMAT\n"
        "store = Store(commit_path('train'), FORMAT)\n"
        "store.write({'step': 1})\n"
        "def save(kept, file):\n"
        "    file.write(b'half of it'); file.flush(); os.kill(os.getpid(), 9)\n"
        "torch.save = save\n"
        "store._disk.next = 0.0  # on a slow disk the next one would wait\n"
        "store.write({'step': 2})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -9
    folder = Path(os.environ[commits.FOLDER])
    assert [torch.load(path) for path in folder.glob("*.pt")] == [{"step": 1}]


# ------------------------------------------------------------------ DistributedDataParallel


def test_ddp_says_what_it_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dist = torch.distributed
    with pytest.raises(TypeError, match=r"takes a DistributedDataParallel, not Linear"):
        elastic.ddp(torch.nn.Linear(1, 1))  # type: ignore[type-var]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        assert elastic.ddp(model) is model  # not an elastic run: nothing changes
        assert not model._comm_hooks
        monkeypatch.setenv("SHANTY_ELASTIC", "1")
        with pytest.raises(ValueError, match=r'init_process_group\("mpi"\)'):
            elastic.ddp(model)
    finally:
        dist.destroy_process_group()
