"""Where a run is: what is written is read again, and no content of the file is an error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from old_runs import FIXTURES
from shanty.runtime import run_agents, site
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir, read_json
from shanty.runtime.site import Host, Site, Submitter

TEXT = st.text(max_size=8)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NUMBER = st.none() | st.integers(0, 70000)
HOST = st.builds(Host, TEXT, st.none() | TEXT, NUMBER, NUMBER, TEXT, TEXT)
SUBMITTER = st.builds(
    Submitter, st.integers(1, 1 << 22), TEXT, st.none() | TEXT, st.none() | TEXT, TEXT
)
SITE = st.builds(
    Site,
    TEXT | st.sampled_from(["ssh", "slurm", "k8s"]),
    st.lists(HOST, max_size=3).map(tuple),
    TEXT,
    st.booleans(),
    st.none() | st.lists(TEXT, max_size=3).map(tuple),
    st.none() | SUBMITTER,
    st.dictionaries(TEXT.filter(lambda key: key not in Site._fields), JSON, max_size=3),
)
# Objects with the keys of a site, and anything at all as their values.
ANYTHING = st.dictionaries(
    st.sampled_from(Site._fields) | TEXT,
    JSON | st.lists(st.fixed_dictionaries({"name": JSON, "port": JSON}), max_size=2),
    max_size=6,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@given(SITE)
def test_what_is_written_is_read_again(given_site: Site) -> None:
    assert Site.from_json(json.loads(json.dumps(given_site.to_json()))) == given_site


@given(ANYTHING)
def test_nothing_in_a_file_is_an_error_and_nothing_is_lost(values: dict[str, Any]) -> None:
    read = Site.from_json(values)
    again = read.to_json()
    assert Site.from_json(again) == read
    for key, value in values.items():
        if key not in Site._fields or key == "own":
            assert again[key] == value
        elif value and key in read.own:  # it could not be read, and is kept
            assert again[key] == value
            assert not getattr(read, key)


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir()))
def test_files_of_an_older_version(name: str) -> None:
    (folder,) = (FIXTURES / name).iterdir()
    found, values = site.read(RunDir(folder)), read_json(folder / "site.json")
    if name in ("local", "local-failed", "local-attempts"):
        assert found is None
    elif name == "ssh-damaged":
        assert found == Site()
    else:
        assert found is not None
        assert values is not None
        values.get("submitter", {}).pop("session", None)  # nothing has read it
        assert found.to_json() == values


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000,
        b'{"hosts": [{"place": 3}]}', b'{"hosts": []}', b'{"hosts": {}}', b'{"hosts": ["a"]}',
        b'{"hosts": [{"name": 3}]}', b'{"hosts": [{"name": "a", "port": "22"}]}',
        b'{"hosts": [{"name": "a"}, {"name": "b", "of": "a newer version"}]}',
    ],
)  # fmt: skip
def test_a_file_without_usable_hosts(run: RunDir, text: bytes) -> None:
    run.site.write_bytes(text)
    found = site.read(run)
    assert found is not None
    assert (found.target, found.hosts) == ("ssh", ())
    with pytest.raises(NotFoundError, match=r"site\.json is damaged"):
        site.hosts_of(run)


def test_hosts_that_cannot_be_read_are_there() -> None:
    """A login node looks after such a run of Slurm's; the queue here knows nothing of it."""
    values = {"target": "slurm", "hosts": [{"place": 3}], "name": "7"}
    found = Site.from_json(json.loads(json.dumps(values)))
    assert (found.hosts, found.names_hosts) == ((), True)
    assert found._replace(name="8").to_json() == {**values, "name": "8"}
    assert not Site("slurm").names_hosts
    assert Site(hosts=(Host("a"),)).names_hosts


def test_no_machines_are_not_the_same_as_no_queue(run: RunDir) -> None:
    for machines in (None, (), ("a", "b")):
        site.write(run, Site(hosts=(Host("a"),), machines=machines))
        assert (site.read(run) or Site()).machines == machines


def test_a_run_of_this_machine_has_no_file(run: RunDir) -> None:
    assert site.read(run) is None
    assert not site.exists(run.path)
    site.write(run, Site("cloud", name="7"))
    assert site.exists(run.path)
    assert read_json(run.site) == {"target": "cloud", "name": "7"}


def test_the_process_that_submits_a_run() -> None:
    record = run_agents.agents_record(submitter=os.getpid())
    submitter = Submitter.from_record(record)
    assert submitter is not None
    assert submitter.record() == record
    assert run_agents.is_alive(submitter.record(), "submitter")
    for damaged in (None, [], {}, {"submitter": {"pid": "1", "born": "2"}}, {"submitter": 1}):
        assert Submitter.from_record(damaged) is None
