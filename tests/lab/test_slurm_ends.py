"""How runs by Slurm wait and end: by hand, by Slurm, by what breaks; and that nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, SlurmSite, site_in

from launches import LONG
from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.rundir import RunDir

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

UP = """
import signal, time
from mpi4py import MPI
world = MPI.COMM_WORLD
signal.signal(signal.SIGUSR1, lambda *_: print("warned", world.rank, flush=True))
print("up", world.rank, flush=True)
end = time.monotonic() + 200
while time.monotonic() < end:
    barrier = world.Ibarrier()
    while not barrier.Test():
        time.sleep(0.02)
    time.sleep(0.02)
"""
ELASTIC = """
import sys, time
import torch
import shanty.torch as hvd
hvd.init()
torch.manual_seed(0)
x = torch.randn(512, 8)
y = x @ torch.arange(8.0).unsqueeze(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    print("begins at", state.step, flush=True)
    while state.step < 60:
        first = hvd.rank() + hvd.size() * state.step
        part = [(first + hvd.size() * k) % 512 for k in range(32)]
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
        optimizer.step()
        state.step += 1
        state.commit()
        time.sleep(float(sys.argv[1]))
    if hvd.rank() == 0:
        print("loss", f"{torch.nn.functional.mse_loss(model(x), y).item():.9f}", flush=True)

train(state)
"""


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with site_in(cluster, tmp_path / "work") as here:
        here.write("up.py", UP)
        here.write("elastic.py", ELASTIC)
        yield here


def started(site: SlurmSite, *words: str) -> RunDir:
    """A run of three ranks on three nodes that is on."""
    run = site.submit("-n", "3", "--nodes", "3", *words, "up.py")
    site.await_state(run, "running")
    return run


def why(found: dict[str, object]) -> str:
    failure = found["failure"]
    assert isinstance(failure, dict), found
    return f"{failure['what']} {failure['why']} {failure['fix']}"


# -------------------------------------------------------------------------------- in the queue


def test_a_run_waits_and_is_taken_out(site: SlurmSite) -> None:
    taken = site.cluster.slurm("sbatch", "--parsable", "-N3", "--exclusive", "--wrap", "sleep 99")
    first = site.submit("-n", "3", "--nodes", "3", "--name", "night", "up.py")
    second = site.submit("-n", "1", "up.py")
    wait_for(lambda: "it is next" in site.described(first)["reason"], 30)
    found = site.described(first)
    assert (found["state"], found["attempt"]) == ("pending", 1)
    assert "1st of 2 that wait" in found["reason"]
    assert "2nd of 2 that wait" in site.described(second)["reason"]
    assert "|night" in site.cluster.slurm("squeue", "-h", "-o", "%i|%j")
    assert f"shanty run {first.id}" in site.cluster.slurm("squeue", "-h", "-o", "%k")
    assert "waits" in site("show", "night").stdout
    assert "no hosts yet" in site("stacks", "night").stderr
    follower = site.start("logs", "-f", "night")
    assert site("stop", second.id).returncode == 0
    assert site.described(second)["state"] == "stopped"
    site.cluster.slurm("scancel", site.job(first))
    assert site.await_state(first, "stopped")["exit_code"] == 143
    assert follower.wait(30) == 0
    follower.communicate()
    site.cluster.slurm("scancel", taken)


# ------------------------------------------------------------------------------- ended by hand


def test_scancel_stops_a_run(site: SlurmSite) -> None:
    run = started(site)
    site.cluster.slurm("scancel", site.job(run))
    assert site.await_state(run, "stopped")["exit_code"] == 143


def test_stop_and_stacks(site: SlurmSite) -> None:
    run = started(site)
    shown = site("stacks", run.id)
    assert shown.returncode == 0, shown.stderr
    assert "up.py" in shown.stdout
    assert site("stop", run.id).returncode == 0
    assert site.described(run)["state"] == "stopped"
    wait_for(lambda: not site.cluster.jobs(), 20, "the job goes on")


# ------------------------------------------------------------------------------ ended by Slurm


@LONG
def test_the_time_limit_of_slurm(site: SlurmSite) -> None:
    run = started(site, "--partition", "short")
    found = site.await_state(run, "failed", patience=150)
    assert found["exit_code"] == 124
    assert "Slurm's time limit of 00:01:00 was reached" in why(found)
    assert "warned 2" in site("logs", run.id).stdout


def preempt(site: SlurmSite) -> str:
    return site.cluster.slurm(
        "sbatch", "--parsable", "-p", "main", "-N3", "--exclusive", "--wrap", "sleep 4"
    )


def test_preempted(site: SlurmSite) -> None:
    run = started(site, "--partition", "low")
    preempt(site)
    found = site.await_state(run, "failed")
    assert found["exit_code"] == 71
    assert "was preempted" in why(found)


@pytest.mark.sampled(12)  # it waits for Slurm's own minute
def test_preempted_and_queued_again(site: SlurmSite) -> None:
    whole = site(*site.on, "-q", "-n", "2", "--nodes", "2", "elastic.py", "0")
    assert whole.returncode == 0, whole.stderr
    loss = whole.stdout.split("loss ")[1].split()[0]
    words = ("--partition", "low", "--requeue", "-n", "2", "--nodes", "2")
    run = site.submit(*words, "elastic.py", "0.3")
    wait_for(lambda: "begins at 0" in site("logs", run.id).stdout, 60, "no training")
    commits = site.home / ".shanty/commits"
    wait_for(lambda: list(commits.glob("*.pt")), 30, "no commit")
    preempt(site)
    found = site.await_state(run, "pending")
    wait_for(lambda: "preempted" in site.described(run)["reason"], 20)
    done = site("logs", "-f", run.id, timeout=150)
    found = site.described(run)
    assert (found["state"], found["attempt"]) == ("succeeded", 2), found
    begins = [line.split()[-1] for line in done.stdout.splitlines() if "begins at" in line]
    assert begins[0] == "0"
    assert int(begins[-1]) > 0
    assert f"loss {loss}" in done.stdout
    assert "preempted" in site("show", run.id).stdout


# --------------------------------------------------------------------------------- what breaks


def test_slurmctld_is_away_for_a_while(site: SlurmSite) -> None:
    run = started(site)
    site.cluster.await_saved(site.job(run))
    site.cluster.stop_controller()
    try:
        for _ in range(2):  # each of them asks slurmctld, in vain
            assert site.described(run)["state"] == "running"
    finally:
        site.cluster.start_controller()
    assert site.described(run)["state"] == "running"
    assert site("stop", run.id).returncode == 0
    assert site.described(run)["state"] == "stopped"


@pytest.mark.parametrize("which", [1, 0], ids=["worker", "lead"])
def test_a_node_dies(site: SlurmSite, which: int) -> None:
    run = started(site)
    node = site.cluster.nodes[which]
    site.lab.do("cut", node)
    try:
        found = site.await_state(run, "failed", patience=90)
        assert found["exit_code"] == 71
        assert node in why(found)
    finally:
        site.lab.do("join", node)
    wait_for(lambda: not site.cluster.jobs(), 60, "the job goes on")


@LONG
def test_an_elastic_run_goes_on_without_a_node(site: SlurmSite) -> None:
    run = site.submit("-n", "3", "--nodes", "3", "--elastic", "elastic.py", "0.5")
    wait_for(lambda: site("logs", run.id).stdout.count("begins at 0") == 3, 120, "no training")
    node = site.cluster.nodes[1]
    site.lab.do("cut", node)
    try:  # Slurm knows that the node is down before the training ends
        found = site.await_state(run, "succeeded", patience=150)
    finally:
        site.lab.do("join", node)
    assert (found["up"], found["ranks"]) == (2, 3)
    assert f"on {node} was lost: host {node} went silent" in site("show", run.id).stdout
    wait_for(lambda: not site.cluster.jobs(), 60, "the job goes on")


def test_a_full_spool(site: SlurmSite) -> None:
    node = site.cluster.nodes[0]
    site.cluster.console(
        node, "mount -t tmpfs -o size=4k tmpfs /run/slurm/spool; echo x >/run/slurm/spool/full || :"
    )
    try:
        run = site.submit("-n", "1", "--slurm", f"--nodelist={node}", "up.py")
        found = site.await_state(run, "failed", patience=60)
        assert found["exit_code"] == 71
        assert f"{node}: SlurmdSpoolDir is full" in why(found)
    finally:
        site.cluster.console(node, "umount /run/slurm/spool")
        site.cluster.slurm("scontrol", "update", f"nodename={node}", "state=resume")


STAGES = ["starting", "running"]


@pytest.mark.parametrize("stage", STAGES)
def test_everything_is_killed(site: SlurmSite, stage: str) -> None:
    run = site.submit("-n", "3", "--nodes", "3", "up.py")
    wait_for(lambda: site.described(run)["state"] in ("starting", "running"), 60)
    if stage == "running":
        site.await_state(run, "running")
    platform.send(platform.marked("SHANTY_RUN_ID", run.id), signal.SIGKILL)
    platform.send(
        [each for each in platform.processes().values() if run.id in " ".join(_words(each.pid))
         and "slurm.sh" not in " ".join(_words(each.pid)) and each.pid != os.getpid()],
        signal.SIGKILL,
    )  # fmt: skip
    wait_for(lambda: not site.left(run), 15, f"left: {site.left(run)}")
    found = site.await_state(run, "failed", "lost", patience=60)
    assert found["exit_code"] in (71, 75)
    assert why(found)


def _words(pid: int) -> list[str]:
    return platform.command(pid)
