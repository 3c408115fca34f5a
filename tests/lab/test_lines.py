"""The user's own launcher lines over several hosts: which hosts they mean, what ranks are given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts
from site_runs import Site

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]
NAMES = {"lab1": "node.one.test", "lab2": "node.two.test"}  # alike up to the first dot


@pytest.fixture
def site(lab: LabHosts, tmp_path: Path) -> Iterator[Site]:
    """Two hosts with other names, which the run is to know by these."""
    config = tmp_path / "ssh_config"
    text = lab.config.read_text()
    for host, name in NAMES.items():
        assert lab.exec(host, "hostname", name).returncode == 0
        text = re.sub(rf"(?m)^Host {host} .*$", f"Host {name}", text)
    config.write_text(text)
    group = [{"name": name, "config": str(config)} for name in NAMES.values()]
    path = lab.shanty.home / "hosts" / "named.json"
    path.write_text(json.dumps({"hosts": group}))
    yield Site(lab, tmp_path / "work")
    path.unlink()
    for host in NAMES:
        lab.exec(host, "hostname", host)


SAY = 'echo "$(hostname) $FOO"'


def test_hosts_whose_names_begin_alike(site: Site, flavour: str) -> None:
    """One rank on each, by a list and by a host file; ranks get what the line hands on by name.

    A function that bash has exported does no harm.
    """
    site.write("hosts", "".join(f"{name} slots = 1\n" for name in NAMES.values()))
    listed = ",".join(f"{name}:1" for name in NAMES.values())
    for where in (["-H", listed.upper()], ["--hostfile", "hosts"]):
        line = ["mpirun", "-np", "2", *where, "-x", "FOO", "-x", "BASH_FUNC_ml%%", "sh"]
        line += ["-c", SAY]
        environ = {**site.lab.shanty.environ, "FOO": "a  b=c", "BASH_FUNC_ml%%": "() {  :\n}"}
        process = site.start(
            *("run", "-q", "--mpi", flavour, "--hostfile", "hosts", "--", *line), env=environ
        )
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert sorted(out.splitlines()) == [
            f"[{rank}] {name} a  b=c" for rank, name in enumerate(NAMES.values())
        ]
    shown = re.search("(?m)^hosts .*", site("show").stdout)
    assert shown and all(name in shown[0] for name in NAMES.values()), shown


def test_a_host_that_is_not_of_the_run(site: Site) -> None:
    line = ["mpirun", "-np", "1", "-H", "node.tow.test", "hostname"]
    done = site("run", "--on", ",".join(NAMES.values()), "--", *line)
    assert done.returncode == 2
    assert "node.tow.test is not a host of the run" in done.stderr
    assert "did you mean node.two.test?" in done.stderr
