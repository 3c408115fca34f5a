"""Lines for torchrun, `accelerate launch` and deepspeed on real ranks: theirs are the run's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runs import WORKERS, Shanty

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(200),
    pytest.mark.usefixtures("own_tmpdir"),
]
LINE = WORKERS / "launcher_line.py"
MPIS = pytest.mark.parametrize("flavour", ["openmpi5", "mpich"])
TORCHRUN = Path(sys.executable).with_name("torchrun")


def places(done: subprocess.CompletedProcess[str], flag: str = "") -> list[str]:
    """What each rank said of its place and words, in order; their groups have to be right."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = []
    for line in sorted(done.stdout.splitlines()):
        said, _, variables = line.partition(" | ")
        label, _, place = said.partition("] ")
        rank, of, size = place.split()[:3]
        assert (label, of) == (f"[{rank}", "of")
        group = f"GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_RANK={rank} LOCAL_WORLD_SIZE={size} "
        assert variables.startswith(f"{group}ROLE_RANK={rank}")
        assert flag in variables
        found.append(place)
    return found


@MPIS
def test_torchrun_trains_one_model(shanty: Shanty, flavour: str) -> None:
    """It was two worlds of two, each of which trained the model, and exit code 0."""
    line = f"torchrun --standalone --nproc-per-node 2 --max-restarts 3 {LINE} train --lr 0.1"
    done = shanty("run", "--mpi", flavour, "-n", 2, "--", *line.split())
    assert places(done) == ["0 of 2 sum 3 train --lr 0.1", "1 of 2 sum 3 train --lr 0.1"]
    assert "left out of this torchrun line: --max-restarts 3 (`shanty run --retries" in done.stderr
    assert shanty.status()["ranks"] == 2


LINES = {
    f"python3 -u -m torch.distributed.launch --nproc_per_node=2 {LINE} a": "--local-rank={} a",
    f"deepspeed --num_gpus 2 --master_port 29500 {LINE} --deepspeed": "--local_rank={} --deepspeed",
    f"accelerate launch --num_processes 2 --cpu --mixed_precision bf16 {LINE} a": "a",
    f"torchrun --nproc-per-node 2 --no-python {sys.executable} {LINE} a": "a",
}
FLAGS = {"deepspeed": "CROSS_RANK=0 CROSS_SIZE=1", "accelerate": "ACCELERATE_MIXED_PRECISION=bf16"}


@MPIS
@pytest.mark.parametrize("line", LINES, ids=[" ".join(each.split()[:4])[:40] for each in LINES])
def test_each_launchers_line(shanty: Shanty, flavour: str, line: str) -> None:
    (shanty.folder / "shanty.toml").write_text(f'[run]\nmpi = "{flavour}"\n')
    flag = next((FLAGS[name] for name in FLAGS if line.startswith(name)), "")
    wanted = [f"{rank} of 2 {LINES[line].format(rank)}" for rank in (0, 1)]
    assert places(shanty("run", "--", *line.split()), flag) == wanted


@MPIS
def test_in_a_script_that_calls_them(shanty: Shanty, flavour: str) -> None:
    """By name, as a module and by a path."""
    lines = [
        f"torchrun --nproc-per-node 2 {LINE} train",
        f"python -m torch.distributed.launch --nproc_per_node=2 {LINE} b",
        f"{TORCHRUN} --nproc-per-node 2 {LINE} c",
        f"accelerate launch --num_processes 2 {LINE} d",
        f"deepspeed --num_gpus 2 --no_local_rank {LINE} e",
    ]
    (shanty.folder / "x.sh").write_text("set -e\n" + "\n".join(lines) + "\n")
    done = shanty("run", "--mpi", flavour, "--oversubscribe", "--raw", "bash", "x.sh")
    words = ["sum 3 train", "--local-rank={} b", "c", "d", "e"]
    wanted = [f"{rank} of 2 {each.format(rank)}" for each in words for rank in (0, 1)]
    assert sorted(places(done)) == sorted(wanted)


def test_in_a_text_for_a_shell(shanty: Shanty) -> None:
    text = f"cd . && torchrun --nproc-per-node 2 {LINE} > out.txt; torchrun --help | head -1"
    done = shanty("run", "-q", text)
    assert done.stdout == "usage: torchrun [OPTION]… SCRIPT [ARGS]…\n", done.stderr
    lines = (shanty.folder / "out.txt").read_text().splitlines()
    assert sorted(line.partition(" |")[0] for line in lines) == ["0 of 2", "1 of 2"]


REFUSED = (
    "torchrun --nproc-per-node 2 train.py",
    "python -m torch.distributed.run --nproc-per-node 2 train.py",
    f"{TORCHRUN} train.py",
    "accelerate launch --num_processes 1 train.py",
    "deepspeed train.py",
    "mlx.launch -n 2 train.py",
    "horovodrun -np 2 python train.py",
    "dmlc-submit -n 2 python train.py",
    "mpirun -np 2 python train.py",
    "mpiexec -n 2 ./a.out",
)

# The launcher kills the other rank once one has failed, which both are to say first.
BOTH_ENDED = "touch ended.$RANK; until [ -e ended.0 ] && [ -e ended.1 ]; do sleep 0.05; done"


@MPIS
def test_a_rank_that_calls_them(shanty: Shanty, flavour: str) -> None:
    """Each of two ranks would start a world of its own, which nobody would see."""
    (shanty.folder / "x.sh").write_text("\n".join([*REFUSED, "code=$?", BOTH_ENDED, "exit $code"]))
    done = shanty("run", "-q", "--mpi", flavour, "-n", 2, "bash", "x.sh")
    assert done.returncode == 2, done.stderr
    said = done.stderr
    for name in ("torchrun", "accelerate", "deepspeed", "mlx.launch", "horovodrun", "dmlc-submit",
                 "mpirun", "mpiexec"):  # fmt: skip
        what = f"[0] shanty: {name}: this is a rank of a run, and {name} starts ranks itself"
        assert said.count(what) == (3 if name == "torchrun" else 1)
    assert "or this line: shanty run -- torchrun --nproc-per-node 2 train.py\n" in said
    assert "or this line: shanty run -- accelerate launch --num_processes 1 train.py\n" in said
    assert "or this line: shanty run -- mpirun -np 2 python train.py\n" in said
    assert "its line: shanty run --raw bash x.sh" in said
    for line in REFUSED[1:3]:  # as what each rank is
        done = shanty("run", "-q", "--mpi", flavour, "--", "mpirun", "-np", "2", *line.split())
        assert done.returncode == 2, done.stderr
        assert "torchrun: this is a rank of a run" in done.stderr


def test_where_there_is_one_world_they_are_left_alone(shanty: Shanty) -> None:
    """In a run of one rank, and where each rank starts one node of a world."""
    (shanty.folder / "x.sh").write_text("mpirun --version; mpiexec --oversubscribe -n 2 echo here")
    done = shanty("run", "-q", "--mpi", "openmpi5", "-n", 1, "bash", "x.sh")
    assert "mpirun (Open MPI) 5" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["here", "here"], done.stderr
    nodes = "--nnodes 2 --node-rank $RANK --master-addr 127.0.0.1 --master-port $MASTER_PORT"
    (shanty.folder / "x.sh").write_text(f"torchrun {nodes} {LINE}")
    done = shanty("run", "-q", "-n", 2, "bash", "x.sh")
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(" |")[0] for line in done.stdout.splitlines()) == [
        "[0] 0 of 2",
        "[1] 1 of 2",
    ]


# What torchrun alone sets: the files and signals of its own agent, and NCCL's way to end.
ITS_OWN = {
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}


def test_scripts_find_what_torchrun_sets(shanty: Shanty) -> None:
    script = shanty.script("import os; print(*sorted(os.environ))")
    words = [str(TORCHRUN), "--nproc-per-node", "1", str(script)]
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    real = subprocess.run(words, env=env, capture_output=True, text=True, timeout=90, check=True)
    ours = shanty("run", "-q", "-n", 1, script)
    assert ours.returncode == 0, ours.stderr
    assert set(real.stdout.split()) - set(ours.stdout.split()) - set(env) <= ITS_OWN


def test_what_is_wrong_ends_before_a_run_is_there(shanty: Shanty) -> None:
    shanty.script("print()", "train.py")
    for line, said in {
        "torchrun --nproc-per-nodes 2 train.py": "torchrun has no option --nproc-per-nodes",
        "torchrun --nnodes 2 train.py": "name the hosts: shanty run --on HOST,HOST -- torchrun",
        "torchrun --nproc-per-node 2 none.py": "script 'none.py' not found",
        "deepspeed --num_gpsu 2 train.py": "did you mean --num_gpus?",
    }.items():
        done = shanty("run", "--", *line.split())
        assert done.returncode in (2, 66)
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    done = shanty("run", "-n", 4, "--", "torchrun", "--nproc-per-node", 2, "train.py")
    assert done.returncode == 2
    assert "the run has 4 ranks, and this torchrun line asks for 2" in done.stderr
    assert not (shanty.home / "runs").exists()
