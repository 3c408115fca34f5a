"""Lines for torchrun, `accelerate launch` and deepspeed: what each option means, and errors."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shanty.runtime.rank
from shanty.runtime.errors import UsageError
from shanty.runtime.gpus import visible_gpus
from shanty.runtime.lines import torchrun
from shanty.runtime.lines.command import LOCAL_RANK, NO_MPI, launcher_of, starts_a_world
from shanty.runtime.lines.launchers import parse
from shanty.runtime.lines.process_line import Count
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.translate import translate

HERE = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
HOSTS = (HostSlots("10.0.0.2", 2), HostSlots("10.0.0.3", 2))
THERE = replace(HERE, hosts=HOSTS)
OLD = torchrun.OLD
LOCAL = f"--local-rank={LOCAL_RANK}"

CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: True
  fsdp_version: 2
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
use_cpu: false
"""
FILES = {
    "fsdp.yaml": CONFIG,
    "cpu.yaml": "distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 2\nmixed_precision: no\n",
    "two.json": json.dumps({"distributed_type": "MULTI_GPU", "num_machines": 2}),
    "zero.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
    "  gradient_clipping: 1.0\nnum_processes: 2\n",
    "hosts": "10.0.0.2 slots=2\n",
}


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def read(line: str, environ: dict[str, str] | None = None):
    """The line, taken apart as the shim does it."""
    found = launcher_of(line.split())
    assert found is not None, line
    return parse(*found[:2], environ or {}, FILES.get)


def words(line: str, layout: Layout = HERE, **environ: str) -> str:
    return " ".join(read(line, environ).mpirun_line(layout, {}, "/none/bin/python"))


# ------------------------------------------------------------------------ which lines these are


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torchrun -m x", "torchrun"),
        ("/env/bin/torchrun x.py", "torchrun"),
        ("python -m torch.distributed.run x.py", "torchrun"),
        ("/env/bin/python3.12 -u -W ignore -m torch.distributed.run x.py", "torchrun"),
        ("python -mtorch.distributed.launch x.py", OLD),
        ("accelerate launch x.py", "accelerate-launch"),
        ("accelerate-launch x.py", "accelerate-launch"),
        ("python -m accelerate.commands.launch x.py", "accelerate-launch"),
        ("python /env/bin/accelerate launch x.py", "accelerate-launch"),
        ("deepspeed x.py", "deepspeed"),
        ("python -m deepspeed.launcher.runner x.py", "deepspeed"),
        ("accelerate config", None),
        ("accelerate", None),
        ("python torchrun.py", None),
        ("python -m torch.distributed x", None),
        ("python -c torchrun", None),
        ("python", None),
        ("mpirun torchrun x.py", None),
        ("", None),
    ],
)
def test_which_launcher_it_is(line: str, name: str | None) -> None:
    found = launcher_of(line.split())
    assert (found and found[0]) == name
    if found:
        assert found[1][-1] in ("x.py", "x")
        assert name in NO_MPI


# ------------------------------------------------------------------------------ how many, where


def test_by_the_gpus_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, count in {"0,2": 2, "": 0, "-1": 0, "1": 1}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_gpus() == count
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    for line in (
        "torchrun --nproc-per-node gpu x",
        "torchrun --nproc-per-node auto x",
        "accelerate launch x",
        "deepspeed --no_local_rank x",
    ):
        assert words(line) == "-np 3 -H localhost:3 python -u x"


def test_accelerate_on_hosts_says_how_many_in_all() -> None:
    line = "accelerate launch --num_processes 4 --num_machines 2 x"
    assert words(line, THERE).startswith("-np 4 -H 10.0.0.2:2,10.0.0.3:2 -x ACCELERATE_")
    assert words("accelerate launch --num_processes 3 x", THERE).startswith("-np 3 -x ACCELERATE_")
    assert " ACCELERATE_MIXED_PRECISION=no " in words(line, THERE)
    line = "accelerate launch --config_file two.json --num_processes 2 x"
    assert words(line, THERE).startswith("-np 2 -H 10.0.0.2:1,10.0.0.3:1 ")


@pytest.mark.parametrize("hosts", [1, 2, 5, None])
@pytest.mark.parametrize("own", [None, 10, 20])
def test_the_runs_own_number(hosts: int | None, own: int | None) -> None:
    """It fills in what a line leaves open, and contradicts nothing."""
    line = read("torchrun x")
    assert line.count(hosts, 4, own) == (
        Count(own, None) if own else Count(hosts, 1) if hosts else Count(None, 1)
    )
    line = read("torchrun --nnodes 2 x") if (hosts or 2) > 1 else read("torchrun --nnodes 1 x")
    nodes = min(hosts or 2, 2)
    assert line.count(hosts, 4, own) == Count(own or nodes, (own or nodes) // nodes)
    if own:
        assert read("torchrun --nproc-per-node 10 x").count(None, 4, own) == Count(own, 10)
        assert read(f"accelerate launch --num_processes {own} x").count(2, 4, own).ranks == own
        line = read("accelerate launch --config_file cpu.yaml x")
        assert line.count(hosts, 4, own).ranks == own


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_nodes_times_processes(hosts: int, each: int, slots: int) -> None:
    layout = replace(HERE, hosts=tuple(HostSlots(f"h{k}", slots) for k in range(hosts)))
    for line in (f"torchrun --nnodes {hosts} --nproc-per-node {each} x",
                 f"torchrun --nproc-per-node {each} x"):  # fmt: skip
        argv = words(line, layout).split()
        assert argv[:3] == ["-np", str(hosts * each), "-H"]
        assert argv[3].split(",") == [f"h{k}:{each}" for k in range(hosts)]
        for flavour in FLAVOURS.values():
            done = translate(argv, flavour, layout, given_environment={}, read=FILES.get)
            assert done.argv[-3:] == ("python", "-u", "x")


def test_a_lead_host_without_slots_gets_no_ranks() -> None:
    layout = replace(HERE, hosts=(HostSlots("lead", 0), *HOSTS))
    wanted = "-np 4 -H 10.0.0.2:2,10.0.0.3:2 python -u x"
    assert words("torchrun --nproc-per-node 2 x", layout) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --max-restarts 0 --standalone --run-path x",
        "deepspeed --num_gpus 1 --log_level info -q x",
        "accelerate launch --same_network --quiet --downcast_bf16 x",
    ],
)
def test_what_needs_no_word(line: str) -> None:
    assert read(line).notes == []


def test_an_elastic_line_says_what_it_takes() -> None:
    line = read("torchrun --nnodes 1:4 x")
    assert line.count(2, 4, None) == Count(2, 1)
    assert line.notes[0].startswith("--nnodes 1:4 takes 2 of the run's hosts: the number of ranks")
    assert read("torchrun --nnodes 1:2 x").count(3, 4, None) == Count(2, 1)


# ------------------------------------------------------------------------------------ variables


def test_torchrun_takes_options_from_variables() -> None:
    environ = {
        "PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_STANDALONE": "0",
        "PET_MODULE": "1",
    }  # fmt: skip
    assert words("torchrun x", **environ) == "-np 2 -H localhost:2 python -u -m x"
    assert words("torchrun --nproc-per-node 1 x", PET_NPROC_PER_NODE="2").startswith("-np 1 ")
    with pytest.raises(UsageError, match=r"\$PET_NPROC_PER_NODE takes a number"):
        read("torchrun x", {"PET_NPROC_PER_NODE": "many"})
    assert read("torchrun --role trainer x").variables == {"ROLE_NAME": "trainer"}


PLAIN = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
}
ON_CPU = {
    "ACCELERATE_USE_CPU": "True",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "KMP_BLOCKTIME": "1",
}
# What Accelerate 1.15 sets for the same line, beside what it hands on and the ranks' addresses.
VARIABLES = {
    "--multi_gpu": {},
    "--cpu --mixed_precision bf16": {**ON_CPU, "ACCELERATE_MIXED_PRECISION": "bf16"},
    "--cpu --mixed_p bf16": {**ON_CPU, "ACCELERATE_MIXED_PRECISION": "bf16"},
    "--dynamo_backend inductor --dynamo_use_dynamic": {
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "True",
    },
    "--num_cpu_threads_per_process 3 --enable_cpu_affinity --debug": {
        "OMP_NUM_THREADS": "3",
        "ACCELERATE_CPU_AFFINITY": "1",
        "ACCELERATE_DEBUG_MODE": "true",
    },
    "--gpu_ids 1,2": {"CUDA_VISIBLE_DEVICES": "1,2"},
    "--gpu_ids all --config_file cpu.yaml": ON_CPU,
    "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward FULL_SHARD --use_parallelism_config "
    "--parallelism_config_tp_size 2 --fsdp_transformer_layer_cls_to_wrap Block": {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_RESHARD_AFTER_FORWARD": "full_shard",
        "FSDP_OFFLOAD_PARAMS": "false",
        "FSDP_MIN_NUM_PARAMS": "100000000",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
        "FSDP_FORWARD_PREFETCH": "false",
        "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_SYNC_MODULE_STATES": "true",
        "FSDP_ACTIVATION_CHECKPOINTING": "false",
        "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "1",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "1",
        "PARALLELISM_CONFIG_TP_SIZE": "2",
        "PARALLELISM_CONFIG_CP_SIZE": "1",
        "PARALLELISM_CONFIG_CP_BACKEND": "torch",
        "PARALLELISM_CONFIG_SP_SIZE": "1",
        "PARALLELISM_CONFIG_SP_BACKEND": "deepspeed",
    },
}


@pytest.mark.parametrize("options", VARIABLES)
def test_what_accelerates_scripts_find(options: str) -> None:
    wanted = read(f"accelerate launch --num_processes 2 {options} x.py")
    assert wanted.variables == {**PLAIN, **VARIABLES[options]}


def test_accelerates_deepspeed_and_megatron() -> None:
    wanted = read("accelerate launch --config_file zero.yaml --zero3_init_flag True x.py")
    assert wanted.variables == {
        "ACCELERATE_MIXED_PRECISION": "no",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,gradient_clipping",
    }
    assert wanted.notes == ["zero.yaml is the configuration of this accelerate launch line"]
    found = read("accelerate launch --use_megatron_lm --megatron_lm_tp_degree 2 x.py").variables
    assert (found["MEGATRON_LM_TP_DEGREE"], found["MEGATRON_LM_PP_DEGREE"]) == ("2", "1")
    found = read("accelerate launch --mixed_precision fp8 --fp8_format E4M3 x.py").variables
    assert (found["ACCELERATE_FP8_FORMAT"], found["ACCELERATE_FP8_OVERRIDE_WGRAD"]) == (
        "E4M3",
        "False",
    )


def test_accelerates_configuration() -> None:
    found = read("accelerate launch --config_file fsdp.yaml x.py")
    assert found.count(1, 2, None).ranks == 4
    kept = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP", "FSDP_AUTO_WRAP_POLICY",
            "FSDP_OFFLOAD_PARAMS", "FSDP_VERSION")  # fmt: skip
    wanted = ["bf16", "true", "TRANSFORMER_BASED_WRAP", "true", "2"]
    assert [found.variables[name] for name in kept] == wanted
    found = read("accelerate launch --config_file fsdp.yaml --multi_gpu x.py")
    assert "ACCELERATE_USE_FSDP" not in found.variables
    usual = {"/home/ann/.cache/huggingface/accelerate/default_config.yaml": CONFIG}
    for environ in ({"HOME": "/home/ann"}, {"HF_HOME": "/home/ann/.cache/huggingface"}):
        for line, ranks in {"--num_machines 1": 4, "--cpu": 1}.items():
            wanted = parse("accelerate-launch", [*line.split(), "x.py"], environ, usual.get)
            assert wanted.count(1, 2, None).ranks == ranks


# --------------------------------------------------------------------------------------- errors


def test_the_right_line_is_said() -> None:
    with pytest.raises(UsageError, match=r"shanty run --on HOST,HOST -- torchrun .* or take one: "
                       r"shanty run -- torchrun --nproc-per-node 6"):  # fmt: skip
        words("torchrun --nnodes 2 --nproc-per-node 3 x")
    with pytest.raises(UsageError, match=r"has 4 ranks, and this torchrun line asks for 2"):
        words("torchrun --nproc-per-node 2 x", replace(HERE, ranks=4))
    with pytest.raises(UsageError, match=r"a multiple of 3"):
        read("torchrun --nproc-per-node 3 x").count(None, 2, 4)
    for kind in ("gpu", "auto"):
        with pytest.raises(UsageError, match=r"write the number: --nproc-per-node N"):
            words(f"torchrun --nproc-per-node {kind} x", THERE)
    with pytest.raises(UsageError, match=r"lacks the number of processes.*\n.*\n.*--num_gpus N"):
        words("deepspeed x", THERE)
    with pytest.raises(UsageError, match=r"5 processes cannot be shared out evenly over 2 hosts"):
        words("accelerate launch --num_processes 5 --num_machines 2 x", THERE)


def test_the_local_rank_is_spelled_as_pytorch_does(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    packages = tmp_path / "lib" / "python3.10" / "site-packages"
    for version, spelled in {"1.13.1+cpu": "--local_rank", "2.0.0": "--local-rank"}.items():
        folder = packages / f"torch-{version}.dist-info"
        folder.mkdir(parents=True)
        wanted = read(f"python -m {OLD} x.py a")
        wanted.settle(str(python))
        assert wanted.words() == ["x.py", f"{spelled}={LOCAL_RANK}", "a"]
        wanted = read("torchrun x.py")
        wanted.settle(str(python))
        assert wanted.words() == ["x.py"]
        folder.rmdir()


# ---------------------------------------------------------------------------------- in a rank


@pytest.mark.parametrize(
    ("line", "world", "refused"),
    [
        ("torchrun --nproc-per-node 2 x", "2", True),
        ("torchrun x", "2", True),
        ("torchrun x", "1", False),
        ("torchrun --nnodes 2 --node-rank 1 --master-addr h x", "2", False),
        ("torchrun --nnodes=2 x", "2", False),
        ("torchrun --nnodes=3 x", "2", True),
        ("accelerate-launch --num_machines 2 x", "2", False),
        ("accelerate launch x", "2", True),
        ("accelerate config", "2", False),
        ("deepspeed x", "2", True),
        ("mlx.launch x", "2", True),
        ("mlx.launch x", "1", False),
        ("horovodrun -np 2 x", "2", True),
    ],
)
def test_a_rank_that_starts_ranks(line: str, world: str, refused: bool, tmp_path: Path) -> None:
    """The shim refuses what would be a world in each rank; all else is what is installed."""
    name, *rest = line.split()
    shims = Path(shanty.runtime.rank.__file__).parent / "shims"
    installed = tmp_path / "bin" / name
    installed.parent.mkdir()
    installed.write_text("#!/bin/sh\necho installed $*\n")
    installed.chmod(0o755)
    path = os.pathsep.join([str(shims), str(installed.parent), os.defpath])
    environ = {"PATH": path, "WORLD_SIZE": world}
    done = subprocess.run(
        [shims / name, *rest], env=environ, capture_output=True, text=True, timeout=30, check=False
    )
    if not refused:
        assert done.stdout == f"installed {' '.join(rest)}\n"
        return
    assert done.returncode == 2
    assert f"shanty: {name}: this is a rank of a run, and {name} starts ranks itself" in done.stderr
    if name in NO_MPI:
        assert f"or this line: shanty run -- {line}\n" in done.stderr
    found = launcher_of(line.split())
    if found:
        assert starts_a_world(found[1], environ)


def test_the_env_file_of_deepspeed() -> None:
    """The current folder's wins over the home's, and the run's own variables over both; before
    them come those of the environment that deepspeed hands on."""
    files = {
        "/home/ann/.deepspeed_env": "FLAGS=--x\nHOME_ONLY=1\n",
        ".deepspeed_env": "# mine\n\nFLAGS=--alpha=1 --beta=2\r\nexport MODE = fast\n",
    }
    words = ["--num_gpus", "2", "x.py"]
    line = parse("deepspeed", words, {"HOME": "/home/ann"}, files.get)
    wanted = {"FLAGS": "--alpha=1 --beta=2", "MODE": "fast", "HOME_ONLY": "1"}
    assert wanted.items() <= line.variables.items()
    assert any(".deepspeed_env" in note for note in line.notes)
    environ = {"DS_ENV_FILE": "other", "NCCL_DEBUG": "INFO", "UCX_TLS": "tcp", "PATH": "/x"}
    environ |= {"PYTHONHASHSEED": "3", "PYTHONPATH": "/x"}
    line = parse("deepspeed", words, environ, {"other": "A=1\nUCX_TLS=self"}.get)
    wanted = {"A": "1", "NCCL_DEBUG": "INFO", "UCX_TLS": "self", "PYTHONHASHSEED": "3"}
    assert wanted.items() <= line.variables.items()
    assert not {"PATH", "PYTHONPATH"} & line.variables.keys()
    with pytest.raises(UsageError, match=r"\.deepspeed_env, line 2: 'MODE fast'"):
        parse("deepspeed", words, {}, {".deepspeed_env": "A=1\nMODE fast\n"}.get)
