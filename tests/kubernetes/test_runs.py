"""Runs in pods: every MPI, tutorials' lines, real training, what comes back, what is taken out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kube_runs import UID, Kube, placed

from runs import LONG, WORKERS, accuracy, wait_for
from shanty.runtime.rundir import read_json

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = ("mpirun", "--allow-run-as-root", "-np", "3", "--hostfile", "HOSTFILE", "-bind-to", "none",
        "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib")  # fmt: skip


def test_ranks_in_two_pods(kube: Kube, flavour: str) -> None:
    done = kube("--mpi", flavour, "-n", "2", "hello.py")
    assert done.returncode == 0, done.stderr
    assert f"uid {UID}" in done.stdout
    pods = placed(done.stdout, 2)
    assert len(pods) == 2
    nodes = (read_json(kube.last.plan) or {})["attempt"]["nodes"]
    assert sorted(node["name"] for node in nodes) == list(pods)
    assert all(node["connection"]["kind"] == "pod" for node in nodes)


@pytest.mark.parametrize("hostfile", ["/kube-openmpi/generated/hostfile", "$HOSTFILE"])
def test_lines_of_tutorials(kube: Kube, flavour: str, hostfile: str) -> None:
    line = [hostfile if word == "HOSTFILE" else word for word in LINE]
    done = kube("--mpi", flavour, "-n", "3", "--", *line, "python", "hello.py")
    assert done.returncode == 0, done.stderr
    assert len(placed(done.stdout, 3)) == 3


def test_several_ranks_a_pod(kube: Kube) -> None:
    done = kube("-n", "4", "--nodes", "2", "--ranks-per-host", "2", "hello.py")
    assert done.returncode == 0, done.stderr
    assert len(placed(done.stdout, 4)) == 2


@pytest.mark.skipif(not LONG, reason="takes minutes: SHANTY_TEST_LONG=1 runs it")
def test_digits(kube: Kube, flavour: str) -> None:
    """An image with Python only gets all packages of the user's environment."""
    shutil.copy(EXAMPLES / "digits.py", kube.shanty.folder)
    words = ["run", *kube.words[:-2], "--mpi", flavour, "-n", "2", "digits.py", "--epochs", "30"]
    done = kube.shanty(*words, env=kube.env, timeout=280)
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > 0.9


@pytest.mark.skipif(not LONG, reason="takes minutes: SHANTY_TEST_LONG=1 runs it")
def test_an_unchanged_script_of_horovods(kube: Kube, flavour: str) -> None:
    pytest.importorskip("torch")
    shutil.copy(WORKERS / "hvd_unchanged.py", kube.shanty.folder)
    words = ["run", *kube.words[:-2], "--mpi", flavour, "-n", "2", "hvd_unchanged.py"]
    done = kube.shanty(*words, env=kube.env, timeout=280)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sum 3 loss True", "[1] sum 3 loss True"]


def test_artifacts_and_metrics_come_back(kube: Kube) -> None:
    (kube.shanty.folder / "save.py").write_text(
        "import shanty, mpi4py.MPI\n"
        "if shanty.rank() == 0:\n"
        "    (shanty.artifacts() / 'model.bin').write_bytes(bytes(3 << 20))\n"
        "    shanty.log(loss=0.5)\n"
    )
    done = kube("-n", "2", "save.py")
    assert done.returncode == 0, done.stderr
    assert (kube.last.artifacts / "model.bin").stat().st_size == 3 << 20
    assert "0.5" in kube.last.metrics.read_text()


def test_an_exit_code_is_passed_on(kube: Kube) -> None:
    (kube.shanty.folder / "bad.py").write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\nsys.exit(7 if MPI.COMM_WORLD.rank == 1 else 0)\n"
    )
    done = kube("-n", "2", "bad.py")
    assert done.returncode == 7
    assert "rank 1" in done.stderr


def test_a_dry_run_makes_nothing(kube: Kube) -> None:
    words = ["-n", "4", "--node-selector", "disk=ssd", "--toleration", "gpu:NoExecute"]
    words += ["--label", "team=ml", "--queue", "batch"]
    done = kube("--dry-run", *words, "hello.py")
    assert done.returncode == 0, done.stderr
    for text in ("parallelism: 4", "disk: ssd", "key: gpu", "team: ml", "queue-name: batch"):
        assert text in done.stdout
    assert not kube.runs


def test_a_patch_changes_the_job(kube: Kube) -> None:
    container = {
        "name": "run",
        "securityContext": {"readOnlyRootFilesystem": True},
        "env": [{"name": "MINE", "value": "yes"}],
    }
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    (kube.shanty.folder / "patch.yaml").write_text(json.dumps(patch))
    (kube.shanty.folder / "mine.py").write_text(
        "import getpass, os, pwd\nfrom mpi4py import MPI\n"
        "print('mine', os.environ['MINE'], os.access('/', os.W_OK))\n"
        "print('I am', getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name)\n"
        "open(os.path.expanduser(f'~user{os.getuid()}/probe'), 'w').close()\n"
    )
    done = kube("-n", "2", "--k8s-patch", "patch.yaml", "mine.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mine yes False") == 2
    assert done.stdout.count(f"I am user{UID} user{UID}\n") == 2


def test_programs_write_to_a_terminal(kube: Kube) -> None:
    """Of C, Perl and Python in a shell the last line before a crash is there."""
    (kube.shanty.folder / "last.py").write_text(
        "import os\nprint('the last line')\nos.kill(os.getpid(), 11)\n"
    )
    done = kube("-n", "1", "sh", "-c", "test -t 1 && exec python3 -I last.py")
    assert done.returncode == 139, done.stderr
    assert "the last line\n" in done.stdout


def test_stop_logs_stacks_and_signals(kube: Kube) -> None:
    text = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))\n"
    up = kube.shanty.folder / "up.py"
    up.write_text(text + up.read_text())
    run = kube.submit("-n", "2", "up.py")
    found = kube.await_state(run, "running")
    assert found["joined"] == 2
    assert "up.py" in kube.do("stacks", run.id)
    assert "SIGUSR1 was passed on to ranks 0, 1" in kube.do("signal", run.id)
    wait_for(lambda: kube.do("logs", run.id).count("saved") == 2, 30, "the signal did not come")
    kube.do("stop", run.id)
    assert kube.await_state(run, "stopped")["state"] == "stopped"
    assert "is up" in kube.do("logs", run.id)


def test_pods_are_kept_on_request(kube: Kube) -> None:
    done = kube("-n", "1", "--keep", "hello.py")
    assert done.returncode == 0, done.stderr
    run = kube.last
    assert "jobs" in kube.left(run)
    its = kube.cluster()
    its.call("DELETE", its.path("jobs", f"shanty-{run.id}", "apis/batch/v1"),
             {"propagationPolicy": "Background"})  # fmt: skip
    wait_for(lambda: not kube.left(run), 90, "the Job's objects stay")
