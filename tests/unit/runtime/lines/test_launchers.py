"""Lines of all launchers: what mpirun gets in their place, and what is wrong with them."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.errors import ShantyError
from shanty.runtime.lines import accelerate_launch, deepspeed, dmlc_submit, horovodrun, torchrun
from shanty.runtime.lines.command import LOCAL_RANK
from shanty.runtime.lines.launchers import parse_in_run
from shanty.runtime.lines.option_table import Line
from shanty.runtime.lines.process_line import ProcessLine
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.translate import translate

HERE = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
THERE = replace(HERE, hosts=(HostSlots("10.0.0.2", 2), HostSlots("10.0.0.3", 2)))
OLD = torchrun.OLD
LOCAL = f"--local-rank={LOCAL_RANK}"
FILES = {
    "c.yaml": "params:\n  cycle_time_ms: 5\n",
    "hosts": "localhost slots=2\n",
    "ssh": "10.0.0.2\n10.0.0.3:22\n",
    "empty": "\n# nobody\n",
    "odd": "a\nb c\n",
    "far": f"a:{'9' * 5000}\n",
    # Of MLX
    "hosts.json": json.dumps([{"ssh": "a", "ips": []}, {"ssh": "b"}, {"ssh": "a"}]),
    "table.json": json.dumps({"backend": "mpi", "envs": ["A=1"], "hosts": [{"ssh": "::1"}] * 3}),
    "ring.json": json.dumps({"backend": "ring", "hosts": []}),
    "envs.json": json.dumps({"envs": 5, "hosts": [{"ssh": "a"}]}),
    "an-env.json": json.dumps({"envs": [5], "hosts": [{"ssh": "a"}]}),
    "mistyped.json": json.dumps([{"ssh": "a", "ip": ["10.0.0.2"]}]),
    "no-names.json": json.dumps([{"ips": ["10.0.0.2"]}]),
    # Of Accelerate
    "cpu.yaml": "distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 2\nmixed_precision: no\n",
    "tpu.yaml": "distributed_type: XLA\n",
    "aws.yaml": "compute_environment: AMAZON_SAGEMAKER\n",
    "typo.yaml": "distributed_type: 'NO'\nnum_procesess: 2\n",
    "list.json": "[1]",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def read(line: str, environ: Mapping[str, str] = {}) -> Line:
    name, *words = shlex.split(line)
    found = parse_in_run(name, words, environ, FILES.get)
    assert found is not None
    return found


def mpirun(line: str, layout: Layout = HERE) -> str:
    return shlex.join(read(line).mpirun_line(layout, {}, "/none/bin/python"))


LINES = {
    "horovodrun -np 2 python x.py": "-np 2 python x.py",
    "horovodrun -np 4 python x.py": "-H localhost:4 -np 4 python x.py",  # more than cores
    "horovodrun python x.py": "python x.py",
    "horovodrun -np 2 -H a:1,b:1 sh -c x": "-H a:1,b:1 -np 2 sh -c x",
    "horovodrun -Ha:1,b:1 -np=2 sh": "-H a:1,b:1 -np 2 sh",
    "horovodrun -np 4 -hostfile hosts true": "--hostfile hosts -np 4 true",
    "horovodrun -np 2 --host-discovery-script 'echo a b:3 a' true": "-H a,b:3 -np 2 true",
    "horovodrun -np 2 --host-discovery-script 'echo a b:3' --slots-per-host 5 true": (
        "-H a:5,b:3 -np 2 true"
    ),
    "horovodrun -np 2 --network-interfaces e0 true": "-np 2 -mca btl_tcp_if_include e0 true",
    "horovodrun -np 2 --tcp true": "-np 2 -mca pml ob1 -mca btl self,sm,tcp true",
    "horovodrun -np 2 -prefix-timestamp true": "-np 2 --timestamp-output true",
    "horovodrun -np 2 '--mpi-args=-x A=1' '--binding-args=--rankfile r' true": (
        "-np 2 -x A=1 --rankfile r true"
    ),
    "horovodrun -np 2 -p 2222 -i id true": "-mca plm_rsh_args '-p 2222 -i id' -np 2 true",
    "horovodrun --gloo --verbose --disable-cache -np 1 true": "-np 1 true",
    "horovodrun -np 2 -- python -c pass": "-np 2 python -c pass",
    "dmlc-submit -n 2 python x.py": "-np 2 python x.py",
    "dmlc-submit -n 4 python x.py": "-H localhost:4 -np 4 python x.py",
    "dmlc-submit -n 2 x.py a": "-np 2 python x.py a",
    "dmlc-submit -n 2 hosts": "-np 2 ./hosts",
    "dmlc-submit -n 2 ../../xgboost a.conf b=1": "-np 2 ../../xgboost a.conf b=1",
    "dmlc-submit -n 2 -H hosts true": "--hostfile hosts -np 2 true",
    "dmlc-submit -n 4 --cluster local -H hosts true": "-H localhost:4 -np 4 true",
    "dmlc-submit -n 2 --cluster ssh true": "-np 2 true",
    "dmlc-submit -n 2 -H /generated/hostfile true": "-np 2 true",
    "dmlc-submit -n 2 -- true": "-np 2 true",
    "dmlc-submit --num-w=2 true": "-np 2 true",
    "dmlc-submit -n2 true": "-np 2 true",
    "mlx.launch --backend mpi -n 2 x.py --lr 0.1": "-np 2 -H localhost:2 python x.py --lr 0.1",
    "mlx.launch x.py --backend mpi a -n 3": "-np 3 -H localhost:3 python x.py a",
    "mlx.launch --backend=mpi -n 3 -- ./a.out -n 2": "-np 3 -H localhost:3 ./a.out -n 2",
    "mlx.launch --backend mpi --hosts 127.0.0.1 -n 2 -- python x": "-np 2 -H localhost:2 python x",
    "mlx.launch --backend mpi --hosts a,b -n 2 x": "-np 4 -H a:2,b:2 x",
    "mlx.launch --backend mpi --hostfile hosts.json x": "-np 3 -H a:2,b:1 x",
    "mlx.launch --hostfile table.json x": "-np 3 -H localhost:3 -x A=1 x",
    "mlx.launch --backend mpi --env A=1 --env B -n 1 x": "-np 1 -H localhost:1 -x A=1 -x B x",
    "mlx.launch --backend mpi --mpi-arg=--tag-output --cwd /data x": (
        "-np 1 -H localhost:1 --tag-output --wdir /data x"
    ),
    "mlx.launch --backend mpi --python /env/bin/python x.py": (
        "-np 1 -H localhost:1 /env/bin/python x.py"
    ),
    "mlx.launch --backend mpi -p 7000 --connections-per-ip 2 --nccl-port 1 x": (
        "-np 1 -H localhost:1 x"
    ),
    "torchrun x.py --lr 0.1": "-np 1 -H localhost:1 python -u x.py --lr 0.1",
    "torchrun --nproc-per-node 2 x.py": "-np 2 -H localhost:2 python -u x.py",
    "torchrun --nproc_per_node=4 -m x -v": "-np 4 -H localhost:4 python -u -m x -v",
    "torchrun --standalone --nproc-per-node=cpu x": "-np 2 -H localhost:2 python -u x",
    "torchrun --nproc-per-node auto x": "-np 2 -H localhost:2 python -u x",
    "torchrun --nnodes 1:4 --nproc-per-node 2 --no-python ./x": "-np 2 -H localhost:2 ./x",
    f"{OLD} --nproc_per_node 2 x.py a": f"-np 2 -H localhost:2 python -u x.py {LOCAL} a",
    f"{OLD} --use_env x.py": "-np 1 -H localhost:1 python -u x.py",
    "deepspeed --num_gpus 2 x.py --deepspeed c.json": (
        f"-np 2 -H localhost:2 python -u x.py --local_rank={LOCAL_RANK} --deepspeed c.json"
    ),
    "deepspeed --no_local_rank --num_gpus 1 --module x": "-np 1 -H localhost:1 python -u -m x",
    "deepspeed --no_local_rank --no_python -i localhost:0,3 ./x": "-np 2 -H localhost:2 ./x",
    "accelerate launch x.py": "-np 1 -H localhost:1 python -u x.py",
    "accelerate launch --num-processes 3 -m x": "-np 3 -H localhost:3 python -u -m x",
    "accelerate launch --config_file cpu.yaml x": "-np 2 -H localhost:2 python -u x",
    "accelerate launch --config_file cpu.yaml --num_processes 3 x": (
        "-np 3 -H localhost:3 python -u x"
    ),
    "accelerate launch --gpu_ids 0,2 x": "-np 2 -H localhost:2 python -u x",
}


@pytest.mark.parametrize("line", LINES)
def test_on_one_host(line: str) -> None:
    assert mpirun(line) == shlex.join(shlex.split(LINES[line]))


ON_HOSTS = {
    "mlx.launch --backend mpi -n 2 x": "-np 4 -H 10.0.0.2:2,10.0.0.3:2 x",
    "mlx.launch --backend mpi --hosts 10.0.0.3 x": "-np 1 -H 10.0.0.3:1 x",
    "torchrun --nproc-per-node 2 x": "-np 4 -H 10.0.0.2:2,10.0.0.3:2 python -u x",
    "torchrun --nnodes 2 --nproc-per-node 1 x": "-np 2 -H 10.0.0.2:1,10.0.0.3:1 python -u x",
    "torchrun --nnodes 1 --nproc-per-node 2 x": "-np 2 -H 10.0.0.2:2 python -u x",
    "torchrun --standalone --nproc-per-node 2 x": "-np 2 -H 10.0.0.2:2 python -u x",
    "torchrun --nnodes 1:8 --nproc-per-node 1 x": "-np 2 -H 10.0.0.2:1,10.0.0.3:1 python -u x",
    "torchrun --nproc-per-node cpu x": "-np 4 python -u x",
    "deepspeed --no_local_rank --num_nodes 2 --num_gpus 2 x": (
        "-np 4 -H 10.0.0.2:2,10.0.0.3:2 -x CROSS_RANK=0 python -u x"
    ),
}


@pytest.mark.parametrize("line", ON_HOSTS)
def test_on_hosts(line: str) -> None:
    assert mpirun(line, THERE) == ON_HOSTS[line]


def test_a_script_that_can_be_run_is_left_to_itself(folder: Path) -> None:
    script = folder / "x.py"
    script.touch(0o644)
    assert mpirun(f"mlx.launch --backend mpi {script}").endswith(f" python {script}")
    script.chmod(0o755)
    assert mpirun(f"mlx.launch --backend mpi {script}") == f"-np 1 -H localhost:1 {script}"


@pytest.mark.parametrize(
    "words",
    [
        "x.py",
        "--backend ring -n 2 x.py",
        "--backend jaccl x.py",
        "--backend jaccl --an-option-of-its-own x.py",
        "--hostfile ring.json x.py",
        "--backend mpi --print-python",
        "--backend mpi --help",
    ],
)
def test_lines_of_mlxs_other_backends_are_left_to_it(words: str) -> None:
    assert parse_in_run("mlx.launch", words.split(), {}, FILES.get) is None


# What options become for the ranks, beside what the rest of the line becomes.
VARIABLES = {
    "horovodrun -np 2 true": {
        "--fusion-threshold-mb 64": {"HOROVOD_FUSION_THRESHOLD": "67108864"},
        "--fusion-threshold-mb=0": {"HOROVOD_FUSION_THRESHOLD": "0"},
        "--cycle-time-ms 2.5": {"HOROVOD_CYCLE_TIME": "2.5"},
        "--cycle 2.5": {"HOROVOD_CYCLE_TIME": "2.5"},
        "--cache-capacity 0": {"HOROVOD_CACHE_CAPACITY": "0"},
        "--timeline-filename t --timeline-mark-cycles": {
            "HOROVOD_TIMELINE": "t",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        },
        "--timeline-mark-cycles": {},
        "--no-stall-check": {"HOROVOD_STALL_CHECK_DISABLE": "1"},
        "--stall-check": {"HOROVOD_STALL_CHECK_DISABLE": "0"},
        "--stall-check-warning-time-seconds 5": {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"},
        "--stall-check-shutdown-time-seconds 9": {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"},
        "--log-level DEBUG": {"HOROVOD_LOG_LEVEL": "DEBUG"},
        "--log-without-timestamp": {"HOROVOD_LOG_HIDE_TIME": "1"},
        "--tcp": {"NCCL_IB_DISABLE": "1"},
        "--network-interfaces a,b": {"NCCL_SOCKET_IFNAME": "a,b"},
        "--network-interface a --network-interface b": {"NCCL_SOCKET_IFNAME": "a,b"},
        "--config-file c.yaml": {"HOROVOD_CYCLE_TIME": "5"},
        "--config-file c.yaml --cycle-time-ms 1": {"HOROVOD_CYCLE_TIME": "1"},
        "--cycle-time-ms 1 --config-file c.yaml": {"HOROVOD_CYCLE_TIME": "1"},
    },
    "dmlc-submit -n 2 true": {
        "--env A=1": {"A": "1"},
        "--env A=1 --env B=": {"A": "1", "B": ""},
        "--env A=1,B=2": {"A": "1", "B": "2"},
        "--env PATHS=a,b": {"PATHS": "a,b"},
        "--env URL=http://x?a=b,c=d": {"URL": "http://x?a=b", "c": "d"},
        "--env URL=http://x,y:1": {"URL": "http://x,y:1"},
        "--env HOME": {"HOME": "/h"},
        "--env HOME,LANG": {"HOME": "/h", "LANG": "C"},
        "--env-worker A:1,B:http://x": {"A": "1", "B": "http://x"},
        "--env DMLC_NUM_SERVER=1": {"DMLC_NUM_SERVER": "1"},
        "--worker-cores 2": {"DMLC_WORKER_CORES": "2"},
        "--worker-memory 2g": {"DMLC_WORKER_MEMORY_MB": "2048"},
        "--worker-memory 1.5G": {"DMLC_WORKER_MEMORY_MB": "1536"},
        "--worker-memory=300m": {"DMLC_WORKER_MEMORY_MB": "300"},
        "--worker-memory-mb 64": {"DMLC_WORKER_MEMORY_MB": "64"},
    },
}


@pytest.mark.parametrize(
    ("line", "options"), [(line, options) for line, rows in VARIABLES.items() for options in rows]
)
def test_what_becomes_a_variable(line: str, options: str) -> None:
    """All hosts get it, by mpirun's option."""
    name, rest = line.split(" ", 1)
    environ = {"HOME": "/h", "LANG": "C"}
    wanted = read(f"{name} {options} {rest}", environ)
    assert wanted.variables == {**read(line).variables, **VARIABLES[line][options]}
    there = wanted.mpirun_line(THERE, {"OMP_NUM_THREADS": "1"}, "")
    assert [f"{name}={value}" for name, value in wanted.variables.items()] == [
        after for word, after in itertools.pairwise(there) if word == "-x"
    ]


# What `--help` of horovodrun 0.28.1 and dmlc-submit (opts.py of dmlc-core) lists, with hidden
# options, short forms and values.
EVERY = {
    "horovodrun -np 2": """
-v|--version|-np 2|--num-proc 2|-cb|--check-build|--disable-cache|--start-timeout 60
--network-interfaces eth0,eth1|--network-interface eth0|--output-filename out|--verbose
--config-file c.yaml|-p 22|--ssh-port 22|-i id|--ssh-identity-file id|--fusion-threshold-mb 64
--cycle-time-ms 2.5|--cache-capacity 512|--hierarchical-allreduce|--no-hierarchical-allreduce
--hierarchical-allgather|--no-hierarchical-allgather|--torus-allreduce|--no-torus-allreduce
--autotune|--no-autotune|--autotune-log-file f|--autotune-warmup-samples 3
--autotune-steps-per-sample 10|--autotune-bayes-opt-max-samples 20
--autotune-gaussian-process-noise 0.8|--min-np 2|--min-num-proc 2|--max-np 4|--max-num-proc 4
--slots-per-host 2|--elastic-timeout 600|--reset-limit 3|--blacklist-cooldown-range 60 300
--timeline-filename t.json|--timeline-mark-cycles|--no-timeline-mark-cycles|--no-stall-check
--stall-check|--stall-check-warning-time-seconds 30|--stall-check-shutdown-time-seconds 90
--mpi-threads-disable|--no-mpi-threads-disable|'--mpi-args=-x A=b'|--tcp
'--binding-args=--bind-to core'|--num-nccl-streams 1|--thread-affinity 0|--gloo-timeout-seconds 30
--log-level INFO|--log-with-timestamp|--log-without-timestamp|-prefix-timestamp
--prefix-output-with-timestamp|--log-hide-timestamp|--no-log-hide-timestamp|-H localhost:2
--hosts localhost:2|-hostfile hosts|--hostfile hosts|'--host-discovery-script=echo a:2'|--gloo|--mpi
""",
    "dmlc-submit -n 2": """
--cluster mpi|--num-workers 2|-n 2|--nworker 2|--worker-cores 2|--worker-memory 2g
--worker-memory-mb 512|--num-servers 1|-s 1|--server-nodes 1|--server-cores 2|--server-memory 4g
--server-memory-mb 4096|--jobname my_job|--queue default|--log-level INFO|--log-file log.txt
--host-ip auto|--hdfs-tempdir /tmp|--host-file hosts|-H hosts|--hostfile hosts|--sge-log-dir logs
--auto-file-cache True|--files hosts|--archives libs.zip|--env A=1|--env-server A:1
--env-worker A:1|--yarn-app-classpath x|--yarn-app-dir x|--mesos-master x:5050|--ship-libcxx /lib
--sync-dst-dir /tmp/x|--slurm-worker-nodes 2|--slurm-server-nodes 1|--kube-namespace x
--kube-worker-image x|--kube-server-image x|--kube-worker-template x|--kube-server-template x
--local-num-attempt 3
""",
}  # fmt: skip
OPTIONS = [
    (start, option)
    for start, text in EVERY.items()
    for option in text.strip().replace("\n", "|").split("|")
]


def test_the_lists_are_the_tables() -> None:
    for start, table in zip(EVERY, (horovodrun.OPTIONS, dmlc_submit.OPTIONS), strict=True):
        names = {
            shlex.split(option)[0].partition("=")[0] for known, option in OPTIONS if known == start
        }
        assert names == set(table) - {"-h", "--help", "--jsrun"}


@pytest.mark.parametrize(("start", "option"), OPTIONS)
def test_every_option_on_every_mpi(start: str, option: str) -> None:
    name, *words = start.split()
    options = shlex.split(option)
    for layout in (HERE, THERE):
        line = parse_in_run(name, [*options, *words, "python", "x.py", "-n", "9"], {}, FILES.get)
        assert line is not None and line.command == ["python", "x.py", "-n", "9"]
        argv = line.mpirun_line(layout, {}, "")
        assert argv[argv.index("-np") + 1] == "2"
        assert argv[-4:] == line.command
        for flavour in FLAVOURS.values():
            done = translate(argv, flavour, layout, given_environment={}, read=FILES.get)
            assert done.argv[-4:] == ("python", "x.py", "-n", "9")


LEFT_OUT = {
    "horovodrun --min-np 2 -np 2 true": "--min-np 2 (the number of ranks does not change",
    "horovodrun --reset-limit 3 -np 2 true": "--reset-limit 3 (the number of ranks",
    "horovodrun --gloo -np 2 true": "--gloo (ranks share their gradients over MPI)",
    "horovodrun --autotune -np 2 true": "nothing is tuned",
    "horovodrun --hierarchical-allreduce -np 2 true": "the run decides how an allreduce",
    "horovodrun --start-timeout 5 -np 2 true": "it is an option of `shanty run`",
    "horovodrun --slots-per-host 3 -np 2 true": "hosts have the slots that they name",
    "torchrun --rdzv-backend c10d --rdzv_endpoint=h:1 --rdzv-id 7 --rdzv-conf a=b x": "find each",
    "torchrun --master-addr h --master_port 29500 --local-addr a x": "find each other",
    "torchrun --node-rank 1 x": "starts the ranks of all its hosts",
    "torchrun --max-restarts 3 x": "--max-restarts 3 (`shanty run --retries N`",
    "torchrun --log-dir l -r 3 --tee 0:1,1:2 -t3 --local-ranks-filter 0 x": "`shanty logs`",
    "torchrun --monitor-interval 0.5 --start-method fork --event-log-handler null x": "--start-m",
    "torchrun --signals-to-handle SIGTERM --shutdown-timeout 5 --numa-binding node x": "--numa",
    "torchrun --logs-specs a --duplicate-stdout-filters b --duplicate-stderr-filters c x": "logs",
    "deepspeed --num_gpus 1 --master_port 1 --master_addr h --launcher pdsh --ssh_port 2 x": "find",
    "deepspeed --num_gpus 1 --no_ssh --node_rank 1 --launcher_args=-x --save_pid x": "--node_rank",
    "deepspeed --num_gpus 1 --bind_cores_to_rank --enable_each_rank_log l x": "--cpus-per-rank",
    "deepspeed --num_gpus 1 --elastic_training --min_elastic_nodes 1 x": "does not change",
    "deepspeed -H hosts --num_gpus 1 x": "hosts (the run has its hosts)",
    "accelerate launch --machine_rank 0 --main_process_ip h --main_process_port 1 x": "find each",
    "accelerate launch --max_restarts 1 -t 3 --log_dir l --rdzv_backend c10d x": "--retries",
    "accelerate launch --mpirun_hostfile hosts x": "hosts (the run has its hosts)",
}
REMARKS = {
    "horovodrun --host-discovery-script uname -np 2 true": "asked once, at the start",
    "horovodrun --host-discovery-script /etc/mpi/discover_hosts.sh -np 2 true": (
        "the hosts are the run's"
    ),
}


@pytest.mark.parametrize("line", [*LEFT_OUT, *REMARKS])
def test_what_is_left_out_is_said(line: str) -> None:
    wanted = read(line)
    wanted.mpirun_line(HERE, {}, "")
    (note,) = wanted.notes
    if line in LEFT_OUT:
        assert note.startswith(f"left out of this {wanted.program} line: ")
    assert {**LEFT_OUT, **REMARKS}[line] in note


MANY = "9" * 5000
WRONG = {
    # Mistakes that all lines share
    "dmlc-submit --num-worker-count 2 true": "has no option --num-worker-count",
    "dmlc-submit --num_workers 2 true": "did you mean --num-workers?",
    "dmlc-submit -x 2 true": "has no option -x",
    "dmlc-submit --num-workers": "--num-workers needs a value",
    "dmlc-submit --num-workers 1.5 true": "takes a whole number from 0 on, not '1.5'",
    "dmlc-submit --num-workers 0 true": "--num-workers must be at least 1, not 0",
    "dmlc-submit --num-workers -3 true": "takes a whole number from 0 on, not '-3'",
    f"dmlc-submit -n {MANY} true": f"-n takes a whole number from 0 on, not '{'9' * 18}…'",
    "dmlc-submit -n 2": "this dmlc-submit line has no command",
    "dmlc-submit --server 1 -n 2 true": "--server of dmlc-submit may mean",
    "dmlc-submit --help=1": "--help of dmlc-submit takes no value",
    "torchrun --nproc-per-node 2": "this torchrun line has no script",
    # Of dmlc-submit
    "dmlc-submit --cluster mpi true": "--num-workers is missing",
    "dmlc-submit python x.py --num 3": "--num-workers is missing",
    "dmlc-submit -n 2 --cluster MPI true": "did you mean mpi?",
    "dmlc-submit -n 2 --cluster moon true": "--cluster takes one of mpi, local, ssh",
    "dmlc-submit -n 2 --worker-cores 0 true": "--worker-cores must be at least 1",
    "dmlc-submit -n 2 --worker-memory 4 true": "--worker-memory takes a size, not '4'",
    f"dmlc-submit -n 2 --worker-memory {'9' * 400}g true": "--worker-memory takes a size",
    "dmlc-submit -n 2 --worker-memory 0g true": "--worker-memory takes a size, not '0g'",
    "dmlc-submit -n 2 --log-level loud true": "--log-level takes one of INFO, DEBUG, not 'loud'",
    "dmlc-submit -n 2 --env NONE true": "--env NONE: variable not set",
    "dmlc-submit -n 2 --env 1=2 true": "--env 1=2: '1=2' is not KEY=VALUE",
    "dmlc-submit -n 2 --env-worker A=1 true": "'A=1' is not KEY:VALUE",
    "dmlc-submit -n 2 --files none.py true": "--files none.py: file not found",
    "dmlc-submit -n 2 -H none true": "--host-file none: file not found",
    "dmlc-submit -n 2 -H empty true": "--host-file empty names no host",
    "dmlc-submit -n 2 --cluster ssh -H odd true": "--host-file odd, line 2: 'b c' is not a host",
    "dmlc-submit -n 2 --cluster ssh -H far true": "is not a host",
    "dmlc-submit -n 3 --cluster ssh -H ssh true": "this run is on localhost only",
    # Of horovodrun
    "horovodrun -np 2 --cycle-time-ms inf true": "--cycle-time-ms takes a number from 0 on",
    "horovodrun -np 2 --cycle-time-ms -1 true": "--cycle-time-ms takes a number from 0 on",
    "horovodrun -np 2 --log-level loud true": "--log-level takes one of TRACE",
    "horovodrun -np 2 -H a:x true": "not a list of hosts",
    "horovodrun -np 2 -H a:2 --hostfile hosts true": "-H and --hostfile both name hosts",
    "horovodrun -np 2 --blacklist-cooldown-range 60": "needs a value",
    "horovodrun -np 2 --config-file none.yaml true": "--config-file none.yaml: file not found",
    "horovodrun -np 2 --jsrun true": "--jsrun of horovodrun has no counterpart",
    # Of mlx.launch
    "mlx.launch --backend mpi -n two x.py": "not 'two'",
    "mlx.launch --backend mpi --hostfile missing.json x.py": "missing.json cannot be read",
    "mlx.launch --backend mpi --hostfile hosts x.py": "hosts is not a host file of MLX",
    "mlx.launch --backend mpi --hostfile envs.json x.py": "envs.json is not a host file of MLX",
    "mlx.launch --backend mpi --hostfile an-env.json x.py": "an-env.json is not a host file of",
    "mlx.launch --backend mpi --hostfile no-names.json x.py": "no-names.json is not a host file of",
    "mlx.launch --backend mpi --hostfile mistyped.json x.py": "line 1: unknown key 'ip'",
    "mlx.launch --backend=mpi --vrebose x.py": "did you mean --verbose?",
    "mlx.launch --hostfile table.json": "this mlx.launch line has no command",
    "mlx.launch --backend mpi --hosts a,,b x.py": "names an empty host",
    'mlx.launch --backend mpi --mpi-arg "\'" x.py': "--mpi-arg ': No closing quotation",
    # Of torchrun, deepspeed and Accelerate
    "torchrun --use-env x": "torchrun has no option --use-env",
    "torchrun --nproc-per-node 0 x": "--nproc-per-node takes a number from 1 on, auto, cpu or gpu",
    "torchrun --nproc-per-node xpu x": "not 'xpu'",
    "torchrun --nnodes 3:2 x": "--nnodes takes MIN:MAX from 1 on",
    "torchrun --nnodes 1:2:3 x": "--nnodes takes a number or MIN:MAX, not '1:2:3'",
    "torchrun -m --no-python x": "asks for a module without Python",
    "torchrun --virtual-local-rank x": "--virtual-local-rank of torchrun has no counterpart",
    "torchrun --nproc-per-node gpu x": "no GPU was found",
    "torchrun --nnodes 2 --nproc-per-node 2 x": "--nnodes asks for 2 hosts, and the run has 1",
    f"{OLD} --no_python x": f"{OLD} with --no-python takes --use-env",
    "deepspeed x": "this deepspeed line starts a process for each GPU, and no GPU was found",
    "deepspeed --num_gpus 2 --include localhost:0 x": "--include and --num_gpus of deepspeed excl",
    "deepspeed --include a@b:0,2 x": "--include a@b:0,2 of deepspeed has no counterpart here",
    "deepspeed --include localhost:x x": "--include takes HOST:0,1",
    "deepspeed --exclude localhost:1 x": "--exclude of deepspeed has no counterpart here",
    "deepspeed --autotuning run x": "--autotuning of deepspeed has no counterpart here",
    "deepspeed --hostfile nothing x": "--hostfile nothing: file not found",
    "accelerate launch --tpu x": "--tpu of accelerate launch has no counterpart here",
    "accelerate launch --cpu --multi_gpu x": "--cpu and --multi_gpu of accelerate launch exclude",
    "accelerate launch --mixed_precision fp12 x": "--mixed_precision takes one of no, fp16",
    "accelerate launch --gpu_ids a x": "--gpu_ids takes numbers with commas, or all",
    "accelerate launch --config_file none x": "--config_file none: file not found",
    "accelerate launch --config_file tpu.yaml x": "tpu.yaml is for XLA",
    "accelerate launch --config_file aws.yaml x": "aws.yaml is for AMAZON_SAGEMAKER",
    "accelerate launch --config_file typo.yaml x": (
        "typo.yaml, line 2: accelerate has no setting num_procesess"
    ),
    "accelerate launch --config_file list.json x": "list.json cannot be read",
    "accelerate launch --num_processes 4 --num_machines 2 x": "--num_machines asks for 2 hosts",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_named(line: str) -> None:
    with pytest.raises(ShantyError) as error:
        mpirun(line)
    assert WRONG[line] in str(error.value)


NAMES = ("torchrun", OLD, "accelerate-launch", "deepspeed", "horovodrun", "dmlc-submit")
KNOWN = [
    *(torchrun.OPTIONS, deepspeed.OPTIONS, accelerate_launch.OPTIONS),
    *(horovodrun.OPTIONS, dmlc_submit.OPTIONS),
]


@given(
    st.sampled_from((*NAMES, "mlx.launch")),
    st.lists(
        st.text(max_size=6)
        | st.sampled_from([name for options in KNOWN for name in options])
        | st.sampled_from(["2", "0", "x.py", "cpu.yaml", "--nnodes=1:2", "mpi", "a=b", "-", "--"]),
        max_size=7,
    ),
)
def test_any_line_is_read_or_refused(name: str, words: list[str]) -> None:
    """Nothing but shanty's own errors is raised, and a command is never lost."""
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ShantyError):
        patch.setattr(horovodrun, "_output_of", str)  # else the script is started
        line = parse_in_run(name, words, {}, FILES.get)
        if line is not None and not line.asks:
            line.mpirun_line(HERE, {}, "")
            line.mpirun_line(THERE, {}, "")
            if isinstance(line, ProcessLine):
                assert line.command == words[len(words) - len(line.command) :]


@pytest.mark.parametrize("name", NAMES)
def test_help_starts_nothing(name: str) -> None:
    line = read(f"{name} --help x.py")
    assert line.answer("").startswith(f"usage: {line.program} [OPTION]")
    assert all(option in line.answer("") for option in line.options)
