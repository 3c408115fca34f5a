"""Lines for horovodrun: each of its options means something here, or is refused by its name."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.translate import translate
from shanty.runtime.rank import redirect
from shanty.runtime.rank.horovodrun import OPTIONS, answer, mpirun_line, parse, read_settings

HERE = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
HOSTS = (HostSlots("10.0.0.2", 2), HostSlots("10.0.0.3", 2))
THERE = Layout(HOSTS, None, None, None, False, 2, "/run/hostfile")

# What `horovodrun --help` of 0.28.1 lists, and the options that it hides, with values for each.
EVERY = """
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
--mpi-threads-disable|--no-mpi-threads-disable|--mpi-args=-x A=b|--tcp
--binding-args=--bind-to core|--num-nccl-streams 1|--thread-affinity 0|--gloo-timeout-seconds 30
--log-level INFO|--log-with-timestamp|--log-without-timestamp|-prefix-timestamp
--prefix-output-with-timestamp|--log-hide-timestamp|--no-log-hide-timestamp|-H localhost:2
--hosts localhost:2|-hostfile h|--hostfile h|--host-discovery-script ./s|--gloo|--mpi|--jsrun
""".strip().replace("\n", "|").split("|")  # fmt: skip
FILES = {"c.yaml": "params:\n  cycle_time_ms: 5\n", "h": "localhost slots=2\n"}


def words(option: str) -> list[str]:
    """The words of an option in the list; one with "=" is one word."""
    return [option] if "=" in option else option.split()


def read(line: list[str], run: str = "localhost:2\n"):
    return parse(line, FILES.get, lambda _: run)


def test_the_list_is_the_table() -> None:
    names = {words(option)[0].partition("=")[0] for option in EVERY}
    assert names == set(OPTIONS) - {"-h", "--help"}


@pytest.mark.parametrize("layout", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("option", EVERY)
def test_every_option_on_every_mpi(option: str, layout: Layout) -> None:
    if option == "--jsrun":
        with pytest.raises(UsageError, match=r"--jsrun of horovodrun has no counterpart"):
            read([option, "-np", "2", "true"])
        return
    wanted = read([*words(option), "-np", "2", "python", "x.py", "-v"])
    assert wanted.command == ["python", "x.py", "-v"]
    assert wanted.ranks == 2
    line = mpirun_line(wanted, layout, {})
    assert line[-3:] == wanted.command
    for flavour in FLAVOURS.values():
        translation = translate(line, flavour, layout, given_environment={}, read=FILES.get)
        assert translation.argv[-3:] == ("python", "x.py", "-v")


VARIABLES = {
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
}


@pytest.mark.parametrize("line", VARIABLES)
def test_what_becomes_a_variable(line: str) -> None:
    wanted = read([*line.split(), "-np", "2", "true"])
    assert wanted.variables == VARIABLES[line]
    there = mpirun_line(wanted, THERE, {})
    assert [f"{k}={v}" for k, v in VARIABLES[line].items()] == [
        after for word, after in itertools.pairwise(there) if word == "-x"
    ]


LINES = {
    "-np 2 python x.py": "-np 2 python x.py",
    "-np 4 python x.py": "-H localhost:4 -np 4 python x.py",  # more than there are cores
    "python x.py": "python x.py",
    "-np 2 -H a:1,b:1 sh -c x": "-H a:1,b:1 -np 2 sh -c x",
    "-Ha:1,b:1 -np=2 sh": "-H a:1,b:1 -np 2 sh",
    "-np 4 -hostfile h true": "--hostfile h -np 4 true",
    "-np 2 --host-discovery-script ./s true": "-H a,b:3 -np 2 true",
    "-np 2 --host-discovery-script ./s --slots-per-host 5 true": "-H a:5,b:3 -np 2 true",
    "-np 2 --network-interfaces e0 true": "-np 2 -mca btl_tcp_if_include e0 true",
    "-np 2 --tcp true": "-np 2 -mca pml ob1 -mca btl self,sm,tcp true",
    "-np 2 -prefix-timestamp true": "-np 2 --timestamp-output true",
    "-np 2 --mpi-args=-x|A=1 --binding-args=--rankfile|r true": "-np 2 -x A=1 --rankfile r true",
    "-np 2 -p 2222 -i id true": "-mca plm_rsh_args -p|2222|-i|id -np 2 true",
    "--gloo --verbose --disable-cache -np 1 true": "-np 1 true",
    "-np 2 -- python -c pass": "-np 2 python -c pass",
}


@pytest.mark.parametrize("line", LINES)
def test_the_line_for_mpirun(line: str) -> None:
    given_words = [word.replace("|", " ") for word in line.split()]
    wanted = read(given_words, "a\nb:3\na\n")
    assert [word.replace(" ", "|") for word in mpirun_line(wanted, HERE, {})] == LINES[line].split()


def test_other_hosts_get_the_variables_that_are_set_already() -> None:
    wanted = read(["-np", "2", "--cycle-time-ms", "1", "true"])
    environ = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_TIMELINE": "t", "HOME": "/h"}
    there = mpirun_line(wanted, THERE, environ)
    assert there[:4] == ["-x", "HOROVOD_CYCLE_TIME=1", "-x", "HOROVOD_TIMELINE=t"]
    assert "-x" not in mpirun_line(wanted, HERE, environ)  # they are inherited


LEFT_OUT = {
    "--min-np 2": "--min-np 2 of horovodrun is left out: the number of ranks does not change",
    "--reset-limit 3": "--reset-limit 3 of horovodrun is left out: the number of ranks",
    "--gloo": "--gloo of horovodrun is left out: ranks share their gradients over MPI",
    "--autotune": "nothing is tuned",
    "--hierarchical-allreduce": "decided by the run",
    "--start-timeout 5": "it is an option of `shanty run`",
    "--slots-per-host 3": "hosts have the slots that they name",
    "--host-discovery-script s": "asked once, at the start",
    "--host-discovery-script /etc/mpi/discover_hosts.sh": "the hosts are the run's",
}


@pytest.mark.parametrize("option", LEFT_OUT)
def test_what_is_left_out_is_said(option: str) -> None:
    wanted = read([*option.split(), "-np", "2", "true"])
    mpirun_line(wanted, HERE, {})
    assert any(LEFT_OUT[option] in text for text in wanted.notes), wanted.notes


def test_ssh_options_amid_a_run_on_hosts() -> None:
    wanted = read(["-p", "22", "-np", "2", "true"])
    assert "plm_rsh_args" not in mpirun_line(wanted, THERE, {})
    assert wanted.notes == ["-p 22 of horovodrun is left out: the run is connected to its hosts"]


REFUSED = {
    "--frobnicate -np 2 true": "horovodrun has no option --frobnicate",
    "--num_proc 2 true": "did you mean --num-proc?",
    f"-np {'9' * 5000} true": "-np takes a whole number from 0 on",
    f"-np 2 --fusion-threshold-mb {'9' * 4299} true": "takes a whole number",
    "-np 2 --cycle-time-ms inf true": "--cycle-time-ms takes a number from 0 on",
    "-np 2 -x A true": "no option -x",
    "-np": "-np needs a value",
    "-np two true": "-np takes a whole number from 0 on, not 'two'",
    "-np 0 true": "-np must be at least 1",
    "-np 2": "has no command",
    "-np 2 --log-level loud true": "--log-level takes one of TRACE",
    "-np 2 --cycle-time-ms -1 true": "--cycle-time-ms takes a number from 0 on",
    "-np 2 --fusion-threshold-mb 1.5 true": "takes a whole number",
    "-np 2 --verbose=1 true": "--verbose of horovodrun takes no value",
    "-np 2 --auto true": "--auto of horovodrun may mean",
    "-np 2 -H a:x true": "no list of hosts",
    "-np 2 -H a:2 --hostfile h true": "-H and --hostfile both name hosts",
    "-np 2 --blacklist-cooldown-range 60": "needs a value",
    "-np 2 --config-file none.yaml true": "--config-file none.yaml: there is no such file",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_named(line: str) -> None:
    with pytest.raises(ShantyError) as error:
        read(line.split())
    assert REFUSED[line] in str(error.value)


def test_a_script_that_names_the_hosts(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a:2; echo b:4\n")
    script.chmod(0o755)
    line = ["-np", "2", "--host-discovery-script", str(script), "true"]
    assert parse(line).hosts == "a:2,b:4"
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(UsageError, match="ended with 3"):
        parse(line)
    script.unlink()
    with pytest.raises(UsageError, match="No such file"):
        parse(line)
    with pytest.raises(UsageError, match="named no hosts"):
        read(line, "\n")


FILE = """\
---
# for the cluster
controller: mpi
params:
    fusion_threshold_mb: 32   # MB
    cycle_time_ms: 3.5
    hierarchical_allreduce: true
    cache_capacity:
autotune:
    enabled: false
timeline:
    filename: "a #1.json"
    mark_cycles: yes
stall_check:
  enabled: false
  warning_time_seconds: 120
library_options:
  mpi_threads_disable: False
logging:
  level: 'INFO'
  with_timestamp: true
"""


def test_a_configuration_file() -> None:
    wanted = parse(
        ["-np", "2", "--config-file", "c", "--log-level", "ERROR", "true"], {"c": FILE}.get
    )
    assert wanted.variables == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_TIMELINE": "a #1.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_LOG_LEVEL": "ERROR",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }
    assert wanted.notes == [
        "params.hierarchical_allreduce in c of horovodrun is left out: "
        "how an allreduce goes over the hosts is decided by the run"
    ]


def test_the_line_wins_over_the_file_on_both_sides_of_a_switch() -> None:
    wanted = parse(["--stall-check", "--config-file", "c", "-np", "2", "true"], {"c": FILE}.get)
    assert wanted.variables["HOROVOD_STALL_CHECK_DISABLE"] == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params: {cycle_time_ms: 1}", "line 1"),
        ("params:\n  - 1", "line 2"),
        ("params:\n    a: 1\n  b: 2", "line 3"),
        ("  a: 1", "line 1"),
        ("params:\n\ta: 1", "line 2"),
        ("params:\n  text: |\n    x", "line 2"),
    ],
)
def test_more_of_yaml_than_there_is(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_settings(text, "c.yaml")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(UsageError, match=r"c, line 2: horovodrun has no setting params\.speed"):
        parse(["--config-file", "c", "true"], {"c": "params:\n  speed: 9\n"}.get)
    with pytest.raises(UsageError, match=r"params\.cycle_time_ms in c takes a number"):
        parse(["--config-file", "c", "true"], {"c": "params:\n  cycle_time_ms: fast\n"}.get)


@given(st.lists(st.sampled_from(sorted(OPTIONS)) | st.text(max_size=6), max_size=6))
def test_any_line_is_read_or_refused(line: list[str]) -> None:
    with contextlib.suppress(ShantyError):
        read(line)


def test_what_starts_nothing() -> None:
    assert answer(read(["-v"]), sys.executable) == "0.28.1"
    built = answer(read(["--check-build"]), "/no/such/python")
    assert "[ ] PyTorch" in built
    assert "[ ] TensorFlow" in built
    there = answer(read(["--check-build"]), sys.executable)
    for package, title in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        mark = "X" if importlib.util.find_spec(package) else " "
        assert f"[{mark}] {title}" in there
    assert "[X] MPI" in built
    usage = answer(read(["--help"]), sys.executable)
    assert all(name in usage for name in OPTIONS)


def test_files_for_a_ranks_output(tmp_path: Path) -> None:
    environ = {redirect.FILES: str(tmp_path / "out"), "RANK": "3", "WORLD_SIZE": "11"}
    files = redirect.copies_of(environ)
    assert files is not None
    files.feed(1, b"a")
    files.feed(2, b"error\n")
    files.feed(1, b"b\n")
    assert (tmp_path / "out/rank.03/stdout").read_bytes() == b"ab\n"
    assert (tmp_path / "out/rank.03/stderr").read_bytes() == b"error\n"
    assert redirect.copies_of({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_files_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("a file")
    environ = {redirect.FILES: str(tmp_path / "out"), "RANK": "0", "WORLD_SIZE": "1"}
    files = redirect.copies_of(environ)
    assert files is not None
    files.feed(1, b"a")
    files.feed(1, b"b")
    assert capsys.readouterr().err.count("cannot write") == 1
