"""Lines for horovodrun: each of its options means something here, or is refused by its name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.horovodrun import parse, read_settings
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.processes import OUTPUT_FILES
from shanty.runtime.rank import redirect

HERE = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
HOSTS = (HostSlots("10.0.0.2", 2), HostSlots("10.0.0.3", 2))
THERE = Layout(HOSTS, None, None, None, False, 2, "/run/hostfile")

FILES = {"c.yaml": "params:\n  cycle_time_ms: 5\n", "h": "localhost slots=2\n"}


def read(line: list[str]):
    return parse(line, FILES.get)


def test_other_hosts_get_the_variables_that_are_set_already() -> None:
    wanted = read(["-np", "2", "--cycle-time-ms", "1", "true"])
    environ = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_TIMELINE": "t", "HOME": "/h"}
    there = wanted.mpirun_line(THERE, environ, "")
    assert there[:4] == ["-x", "HOROVOD_CYCLE_TIME=1", "-x", "HOROVOD_TIMELINE=t"]
    assert "-x" not in wanted.mpirun_line(HERE, environ, "")  # they are inherited


def test_ssh_options_amid_a_run_on_hosts() -> None:
    wanted = read(["-p", "22", "-np", "2", "true"])
    assert "plm_rsh_args" not in wanted.mpirun_line(THERE, {}, "")
    assert wanted.notes == [
        "left out of this horovodrun line: -p 22 (the run is connected to its hosts)"
    ]


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
        parse([*line[:2], "--host-discovery-script", "true", "true"])


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
        "left out of this horovodrun line: params.hierarchical_allreduce in c "
        "(the run decides how an allreduce goes over the hosts)"
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


def test_what_starts_nothing() -> None:
    assert read(["-v"]).answer(sys.executable) == "0.28.1"
    built = read(["--check-build"]).answer("/no/such/python")
    assert "[ ] PyTorch" in built
    assert "[ ] TensorFlow" in built
    there = read(["--check-build"]).answer(sys.executable)
    for package, title in (("torch", "PyTorch"), ("tensorflow", "TensorFlow")):
        mark = "X" if importlib.util.find_spec(package) else " "
        assert f"[{mark}] {title}" in there
    assert "[X] MPI" in built


def test_files_for_a_ranks_output(tmp_path: Path) -> None:
    environ = {OUTPUT_FILES: str(tmp_path / "out"), "RANK": "3", "WORLD_SIZE": "11"}
    files = redirect.copies_of(environ)
    assert files is not None
    files.feed(1, b"a")
    files.feed(2, b"error\n")
    files.feed(1, b"b\n")
    assert (tmp_path / "out/rank.03/stdout").read_bytes() == b"ab\n"
    assert (tmp_path / "out/rank.03/stderr").read_bytes() == b"error\n"
    assert redirect.copies_of({"RANK": "0", "WORLD_SIZE": "1"}) is None
