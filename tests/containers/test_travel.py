"""Images go from this machine to hosts that lack them: docker here, podman there and so on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients import client
from engines import Engine
from own_images import cleared, digest, identity, images, put, tar
from runs import wait_for
from shanty.launch.containers import images as getting
from shanty.launch.containers.images import ImagesHere
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, ShantyError
from shanty.runtime.rpc import layers
from shanty.runtime.spec import JobSpec, Script

NAME = "shanty-test-travel:1"
SIZE = 300_000


class Host:
    """A host with an engine, and what it was asked."""

    def __init__(self, rpc: RpcClient, engine: Engine, home: Path) -> None:
        self.rpc, self.engine, self.home = rpc, engine, home
        self.asked: list[str] = []

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        self.asked.append(verb)
        return self.rpc.ask(verb, **args).values

    @property
    def sent(self) -> int:
        """How many layers it was sent, since somebody asked last."""
        count = self.asked.count("layer-put")
        self.asked.clear()
        return count

    @property
    def store(self) -> list[str]:
        """The names of all in the store of layers, also what is half made."""
        folder = self.home / ".shanty" / "store" / "layers"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def here(docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """This machine, with docker and a home of its own."""
    for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in docker.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "here"))
    with cleared(docker):
        yield docker


@pytest.fixture
def make_host(podman: Engine, tmp_path: Path) -> Iterator[Callable[[str], Host]]:
    """`make_host("a")`: a host with podman."""
    opened = []

    def make(name: str) -> Host:
        home = tmp_path / name
        context = client(name, home, **podman.environ)
        opened.append(context)
        return Host(context.__enter__(), podman, home)

    with cleared(podman):
        yield make
        for context in opened:
            context.__exit__(None, None, None)


def get(host: Host, image: str = NAME, tell: Callable[[str], None] = lambda _: None) -> str:
    """Have the image on a host; its id there."""
    job = JobSpec(Script("train.py"), workdir="/", image=image, runtime=host.engine.name)
    own = ImagesHere(job, Path(os.environ["SHANTY_HOME"]), os.environ)
    found = getting.get(host.ask, job, image, os.environ, tell, own)
    return found.id.removeprefix("sha256:")


def test_only_what_is_new_is_sent(here: Engine, make_host, tmp_path: Path) -> None:
    host = make_host("host")
    base, first, second = (os.urandom(SIZE) for _ in range(3))
    told: list[str] = []
    own = put(here, NAME, [base, first], tmp_path)
    assert get(host, tell=told.append) == own == identity(host.engine, NAME)
    assert host.sent == 2
    assert any(f"layers of {NAME}, " in text for text in told)
    assert get(host) == own
    assert host.asked == ["container-engine"]  # the same id: nothing else is asked
    host.asked.clear()
    newer = put(here, NAME, [base, second], tmp_path)
    assert get(host) == newer == identity(host.engine, NAME) != own
    assert host.sent == 1
    assert host.store == sorted(map(digest, (base, first, second)))


def test_what_an_image_of_the_host_has_is_not_sent(here: Engine, make_host, tmp_path) -> None:
    """It may have the whole image, by another name."""
    host = make_host("host")
    base, first, second = (os.urandom(SIZE) for _ in range(3))
    own = put(here, NAME, [base, first], tmp_path)
    assert put(host.engine, "shanty-test-other:1", [base, first], tmp_path) == own
    assert get(host) == own
    assert host.sent == 0 and host.store == []
    newer = put(here, NAME, [base, second], tmp_path)
    assert get(host) == newer
    assert host.sent == 1


def test_a_name_that_somebody_else_gave_on_the_host_stays(
    here: Engine, make_host, tmp_path: Path
) -> None:
    host = make_host("host")
    other = put(host.engine, NAME, [os.urandom(SIZE)], tmp_path)
    own = put(here, NAME, [os.urandom(SIZE)], tmp_path)
    assert get(host) == own
    assert identity(host.engine, NAME) == other
    assert own in images_with_hidden(host.engine)
    assert get(host) == own and host.sent == 1


def images_with_hidden(engine: Engine) -> set[str]:
    listed = engine.run("image", "ls", "--all", "--quiet", "--no-trunc").stdout.split()
    return {one.removeprefix("sha256:") for one in listed}


def test_podman_here_and_docker_there(
    docker: Engine, podman: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    for name, value in podman.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "here"))
    with (
        cleared(docker, podman),
        client("host", tmp_path / "h", PATH=os.environ["PATH"], **docker.environ) as c,
    ):
        host = Host(c, docker, tmp_path / "h")
        own = put(podman, NAME, [os.urandom(SIZE)], tmp_path)
        assert get(host) == own == identity(docker, NAME)
        assert host.sent == 1
        assert get(host) == own and host.asked == ["container-engine"]


def test_two_at_once_do_no_harm(here: Engine, make_host, tmp_path: Path) -> None:
    hosts = [make_host("one"), make_host("two")]
    own = put(here, NAME, [os.urandom(SIZE) for _ in range(3)], tmp_path)
    found: list[str] = []
    threads = [threading.Thread(target=lambda h=h: found.append(get(h))) for h in hosts * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [own] * 4
    for host in hosts:
        assert not [name for name in host.store if name.startswith(".")]


@pytest.mark.parametrize("end", ["the client goes", "other content"])
def test_a_layer_that_breaks_off_leaves_nothing(make_host, end: str) -> None:
    host = make_host("host")
    content = os.urandom(SIZE)
    packed = b"".join(layers.archive.compressed([tar(content)]))
    if end == "other content":
        with pytest.raises(PrepareError, match="did not arrive as a whole"):
            host.ask("layer-put", data=packed, hash="0" * 64)
    else:
        with pytest.raises(ShantyError):
            host.ask("layer-put", data=[packed[:100]], size=len(packed), hash=digest(content))
    wait_for(lambda: host.store == [], 10, f"there is something left: {host.store}")


def test_a_layer_that_was_damaged_there_is_brought_anew(
    here: Engine, make_host, tmp_path: Path
) -> None:
    host = make_host("host")
    base = os.urandom(SIZE)
    put(here, NAME, [base], tmp_path)
    get(host)
    file = host.home / ".shanty/store/layers" / digest(base) / "layer.tar.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)  # of the same size
    file.write_bytes(bytes(data))
    before = images(host.engine)
    newer = put(here, NAME, [base, os.urandom(SIZE)], tmp_path)
    host.asked.clear()
    with pytest.raises(PrepareError, match="was damaged"):
        get(host)
    assert images(host.engine) == before
    host.asked.clear()
    assert get(host) == newer
    assert host.sent == 0  # the image that is there has it


def test_where_nobody_has_it_the_host_says_why(here: Engine, make_host) -> None:
    host = make_host("host")
    told: list[str] = []
    with pytest.raises(PrepareError, match="cannot be pulled") as error:
        get(host, "no.such.registry/x:1", told.append)
    assert "cannot be reached" in error.value.why
    assert host.asked == ["container-engine", "image-pull"]
    assert any("docker pulls" in text for text in told)  # this machine has tried as well


def test_an_image_file_is_sent_once(make_host, tmp_path: Path) -> None:
    host = make_host("host")
    file = tmp_path / "x.sif"
    file.write_bytes(os.urandom(SIZE))
    job = JobSpec(Script("train.py"), workdir="/", image=str(file))
    own = ImagesHere(job, tmp_path / "here", os.environ)
    there = own.file(str(file), host.ask, lambda _: None)
    assert there == str(file)  # both have one file system
    other = tmp_path / "y" / "x.sif"
    other.parent.mkdir()
    file.rename(other)
    own = ImagesHere(job, tmp_path, os.environ)

    def elsewhere(verb: str, **args: Any) -> dict[str, Any]:
        return host.ask(verb, **{**args, **({"path": "/nosuch"} if "path" in args else {})})

    for puts in (1, 0):
        host.asked.clear()
        there = own.file(str(other), elsewhere, lambda _: None)
        assert Path(there).read_bytes() == other.read_bytes() and Path(there) != other
        assert host.asked.count("file-put") == puts
    assert own.file("/nosuch.sif", elsewhere, lambda _: None) == "/nosuch.sif"
