"""A line of `mlx.launch`: what is MPI's becomes one of mpirun's, all else is left to MLX."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.rank.mlx_launch import mpirun_line, parse

ONE = Layout((HostSlots("vm", 2),), None, None, None, False, 2, "/run/hostfile")
TWO = replace(ONE, hosts=(HostSlots("10.0.0.2", 1), HostSlots("10.0.0.3", 1)))
FILES = {
    "hosts.json": json.dumps([{"ssh": "a", "ips": []}, {"ssh": "b"}, {"ssh": "a"}]),
    "table.json": json.dumps(
        {"backend": "mpi", "envs": ["A=1"], "hosts": [{"ssh": "localhost"}] * 3}
    ),
    "ring.json": json.dumps({"backend": "ring", "hosts": []}),
    "hostfile": "10.0.0.2 slots=1\n",
    "envs.json": json.dumps({"envs": 5, "hosts": [{"ssh": "a"}]}),
    "an-env.json": json.dumps({"envs": [5], "hosts": [{"ssh": "a"}]}),
    "mistyped.json": json.dumps([{"ssh": "a", "ip": ["10.0.0.2"]}]),
    "no-names.json": json.dumps([{"ips": ["10.0.0.2"]}]),
}


def words(line: str, layout: Layout = ONE) -> str:
    found = parse(line.split(), FILES.get)
    assert found is not None
    return " ".join(mpirun_line(found, layout))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("-n 2 python x.py", "-np 2 -H vm:2 python x.py"),
        ("-n 2 x.py --lr 0.1", "-np 2 -H vm:2 python x.py --lr 0.1"),
        ("--repeat-hosts 3 -- ./a.out", "-np 3 -H vm:3 ./a.out"),
        ("--hosts 127.0.0.1 x", "-np 1 -H vm:1 x"),
        ("--hosts a,b -n 2 x", "-np 4 -H a:2,b:2 x"),
        ("--hostfile hosts.json x", "-np 3 -H a:2,b:1 x"),
        ("--env A=1 --env B -n 1 x", "-np 1 -H vm:1 -x A=1 -x B x"),
        ("--mpi-arg=--tag-output --cwd /data x", "-np 1 -H vm:1 --wdir /data --tag-output x"),
        ("--python /env/bin/python x.py", "-np 1 -H vm:1 /env/bin/python x.py"),
        ("-p 7000 --connections-per-ip 2 --nccl-port 1 x", "-np 1 -H vm:1 x"),
    ],
)
def test_of_mpi(line: str, wanted: str) -> None:
    assert words("--backend mpi " + line) == wanted


def test_the_host_file_may_say_that_it_is_mpi() -> None:
    assert words("--hostfile table.json x") == "-np 3 -H vm:3 -x A=1 x"


def test_the_hosts_of_a_run_on_several() -> None:
    assert words("--backend mpi -n 2 x", TWO) == "-np 4 -H 10.0.0.2:2,10.0.0.3:2 x"
    assert words("--backend mpi --hosts 10.0.0.3 x", TWO) == "-np 1 -H 10.0.0.3:1 x"


def test_a_script_that_can_be_run_is_left_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("#!/usr/bin/env python\n")
    assert words(f"--backend mpi {script}") == f"-np 1 -H vm:1 python {script}"
    script.chmod(0o755)
    assert os.access(script, os.X_OK)
    assert words(f"--backend mpi {script}") == f"-np 1 -H vm:1 {script}"


@pytest.mark.parametrize(
    "line",
    [
        "x.py",
        "--backend ring -n 2 x.py",
        "--backend jaccl x.py",
        "--hostfile ring.json x.py",
        "--backend mpi --print-python",
        "--backend mpi --help",
    ],
)
def test_all_else_is_left_to_mlx(line: str) -> None:
    assert parse(line.split(), FILES.get) is None


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--backend mpi", "nothing to run"),
        ("--backend mpi -n 0 x.py", "-n must be 1 or more"),
        ("--backend mpi -n two x.py", "two"),
        ("--backend mpi --hostfile missing.json x.py", "missing.json cannot be read"),
        ("--backend mpi --hostfile hostfile x.py", "hostfile is not a host file of MLX"),
        ("--backend mpi --hostfile envs.json x.py", "envs.json is not a host file of MLX"),
        ("--backend mpi --hostfile an-env.json x.py", "an-env.json is not a host file of MLX"),
        ("--backend mpi --hostfile mistyped.json x.py", "line 1: unknown key 'ip'"),
        ("--backend mpi --vrebose x.py", "no option --vrebose\n.*--verbose"),
        ("--backend mpi --hosts a,,b x.py", "names an empty host"),
        ("--backend mpi --mpi-arg ' x.py", "--mpi-arg ': No closing quotation"),
        ("--backend mpi --hostfile no-names.json x.py", "no-names.json is not a host file of MLX"),
    ],
)
def test_what_makes_no_sense_is_named(line: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(line.split(), FILES.get)
    assert re.search(named, str(error.value))
