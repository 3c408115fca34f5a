"""MPIs and other trees are placed on hosts: once, whole, and only where they run."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clients import client
from shanty.launch.content import content_store
from shanty.launch.content.content_store import (
    Package,
    place_mpi,
    put_tree,
    refuse_foreign,
    runs_on,
)
from shanty.launch.transport.parallel import Step, side_by_side
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, StorageError, UsageError
from shanty.runtime.mpi import detect
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.rpc import store


def nobody(step: Step) -> None:
    """Hears the progress and forgets it."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RpcClient]:
    with client("h1", tmp_path / "home1") as found:
        yield found


def tree(root: Path) -> Package:
    """A small package with a program, two names of one file and a link."""
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "bin" / "tool").write_text("#!/bin/sh\necho works\n")
    (root / "bin" / "tool").chmod(0o755)
    (root / "lib" / "liba.so").write_bytes(b"x" * 100_000)
    (root / "lib" / "liba.so.1").write_bytes(b"x" * 100_000)
    (root / "lib" / "link").symlink_to("liba.so")
    files = ("bin/tool", "lib/liba.so", "lib/liba.so.1", "lib/link")
    name = store.tree_hash(content_store.content(root, files))
    return Package("tool", name, root, files, (), root.parent / "cache" / f"{name}.tar.gz")


def test_a_tree_arrives_as_it_is(tmp_path: Path, host: RpcClient) -> None:
    package = tree(tmp_path / "here")
    steps: list[Step] = []
    there = Path(put_tree(host, "mpi", package, steps.append))
    assert there == tmp_path / "home1" / ".shanty" / "store" / "mpi" / package.hash
    assert subprocess.check_output([there / "bin" / "tool"]) == b"works\n"
    assert (there / "lib" / "link").readlink() == Path("liba.so")
    assert (there / "lib" / "liba.so").stat().st_ino == (there / "lib" / "liba.so.1").stat().st_ino
    assert store.tree_hash(content_store.content(there, package.files)) == package.hash
    assert steps[0].done == 0
    assert steps[-1].done == steps[-1].total > 0
    sent = host.bytes_sent
    assert put_tree(host, "mpi", package, nobody) == str(there)
    assert host.bytes_sent - sent < 200


def test_what_changes_on_the_way_is_refused(tmp_path: Path, host: RpcClient) -> None:
    package = tree(tmp_path / "here")
    (package.root / "bin" / "tool").write_text("something else")
    with pytest.raises(PrepareError, match="changed while it was packed"):
        put_tree(host, "mpi", package, nobody)
    assert not any(package.archive.parent.iterdir())
    sink = io.BytesIO()
    content_store.pack(package.root, package.files, sink)
    with pytest.raises(PrepareError, match="wrong content arrived"):
        host.ask("store-put", data=sink.getvalue(), kind="mpi", hash=package.hash)
    assert not any((tmp_path / "home1" / ".shanty" / "store" / "mpi").iterdir())


def test_a_cut_archive_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    package = tree(tmp_path / "here")
    whole = io.BytesIO()
    content_store.pack(package.root, package.files, whole)
    for size in (0, 10, len(whole.getvalue()) // 2):
        with pytest.raises(PrepareError):
            ask = {"kind": "mpi", "hash": package.hash}
            store.store_put(ask, io.BytesIO(whole.getvalue()[:size]), print)
    assert not any((tmp_path / ".shanty" / "store" / "mpi").iterdir())


@pytest.mark.parametrize(("kind", "name"), [("mpi", "../../x"), ("../x", "0" * 64), ("mpi", "")])
def test_a_name_never_leads_out_of_the_store(kind: str, name: str) -> None:
    with pytest.raises(UsageError):
        store.store_has({"kind": kind, "hash": name}, io.BytesIO(), print)


def test_two_at_once_are_as_good_as_one(tmp_path: Path) -> None:
    target = str(tmp_path / "store" / "item")
    with store.placing(target) as one, store.placing(target) as other:
        Path(one, "file").write_text("1")
        Path(other, "file").write_text("1")
    assert list((tmp_path / "store").iterdir()) == [tmp_path / "store" / "item"]


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with (
        pytest.raises(StorageError, match="cannot write"),
        store.placing(str(tmp_path / "store" / "item")),
    ):
        pass


def test_the_sweep_takes_what_nobody_used(tmp_path: Path, host: RpcClient) -> None:
    store = tmp_path / "home1" / ".shanty" / "store" / "mpi"
    old, new, kept, half = (store / name for name in ("a" * 64, "b" * 64, "c" * 64, ".d-half"))
    for folder in (old, new, kept, half):
        folder.mkdir(parents=True)
    long_ago = time.time() - 40 * 86400
    for folder in (old, kept, half):
        os.utime(folder, (long_ago, long_ago))
    assert host.ask("store-has", kind="mpi", hash="c" * 64).values["have"]  # it is used now
    answer = host.ask("store-sweep", days=30).values
    assert sorted(answer["removed"]) == sorted([str(old), str(half)])
    assert sorted(store.iterdir()) == [new, kept]


def test_the_cache_forgets_what_nobody_used(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.tar.gz").write_text(name)
    long_ago = time.time() - 31 * 86400
    for path in (tmp_path / "old", tmp_path / "old.tar.gz"):
        os.utime(path, (long_ago, long_ago))
    store.prune(str(tmp_path), content_store.KEPT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.tar.gz"]


# -------------------------------------------------------------------------------- MPIs


@pytest.fixture(scope="session")
def wheel() -> Installation:
    for prefix in detect.wheel_prefixes():
        found = detect.inspect_prefix(prefix, "wheel")
        if found is not None:
            return found
    pytest.skip("no MPI from PyPI beside this Python")


def test_the_mpi_beside_python_is_placed_alone(
    tmp_path: Path, host: RpcClient, wheel: Installation
) -> None:
    home = tmp_path / "shanty"
    with client("h2", tmp_path / "home2") as second:
        placed = place_mpi([host, second], wheel, home, nobody)
    assert list(placed) == ["h1", "h2"]
    for name, number in (("h1", 1), ("h2", 2)):
        there = placed[name]
        assert there.origin == "shanty"
        assert Path(there.prefix).is_relative_to(tmp_path / f"home{number}")
        seen = detect.inspect_prefix(there.prefix, "shanty")
        assert seen == there
        asked = [there.launcher, "--version"]
        assert wheel.version in subprocess.check_output(asked, text=True, timeout=30)
        names = {path.name for path in Path(there.prefix, "bin").iterdir()}
        assert "python" not in names
        assert "prted" in names or wheel.flavour != "openmpi5"
    sent = host.bytes_sent
    started = time.perf_counter()
    assert place_mpi([host], wheel, home, nobody)["h1"] == placed["h1"]
    assert time.perf_counter() - started < 2
    assert host.bytes_sent - sent < 200
    system = replace(placed["h1"], origin="system")
    assert place_mpi([host], system, home, nobody)["h1"] == system  # where it is
    shutil.rmtree(system.prefix)
    with pytest.raises(PrepareError, match="h1: it does not have") as caught:
        place_mpi([host], system, home, nobody)
    assert "--mpi openmpi" in caught.value.fix


def test_the_hash_is_read_once(
    tmp_path: Path, wheel: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = content_store.mpi_package(wheel, tmp_path)
    monkeypatch.setattr(content_store, "content", None)
    assert content_store.mpi_package(wheel, tmp_path) == first


def test_a_damaged_cache_is_no_harm(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "trees.json"
    assert content_store.remembered(cache, "k", lambda: "v") == "v"
    assert content_store.remembered(cache, "k", lambda: "other") == "v"
    for damage in ("", "[1]", '{"k": 1}', "{"):
        cache.write_text(damage)
        assert content_store.remembered(cache, "k", lambda: "w") == "w"
    for number in range(200):
        content_store.remembered(cache, str(number), lambda: "v")
    assert len(json.loads(cache.read_text())) == 100


MAC = {"system": "macOS", "architecture": "arm64", "glibc": ""}
LINUX = {"system": "Linux", "architecture": "x86_64", "glibc": "2.36"}


@pytest.mark.parametrize(
    ("tag", "there", "expected"),
    [
        ("any", LINUX, True),
        ("manylinux_2_28_x86_64", LINUX, True),
        ("manylinux_2_36_x86_64", LINUX, True),
        ("manylinux_2_39_x86_64", LINUX, False),
        ("manylinux2014_x86_64", LINUX, True),
        ("manylinux1_x86_64", {**LINUX, "glibc": "2.4"}, False),
        ("manylinux_2_28_aarch64", LINUX, False),
        ("manylinux_2_28_x86_64", {**LINUX, "glibc": ""}, False),
        ("musllinux_1_2_x86_64", LINUX, False),
        ("musllinux_1_2_x86_64", {**LINUX, "glibc": ""}, True),
        ("linux_x86_64", LINUX, True),
        ("macosx_11_0_arm64", LINUX, False),
        ("macosx_11_0_arm64", MAC, True),
        ("macosx_11_0_universal2", MAC, True),
        ("win_amd64", LINUX, False),
    ],
)  # fmt: skip
def test_where_a_wheel_runs(tag: str, there: dict[str, str], expected: bool) -> None:
    assert runs_on([tag], there) is expected


def test_another_machine_is_refused_by_name() -> None:
    arm = {"system": "Linux", "architecture": "aarch64", "glibc": "2.36"}
    with pytest.raises(PrepareError) as caught:
        refuse_foreign("Open MPI 5", ("manylinux_2_28_x86_64",), arm, "pi")
    assert "does not run on pi" in caught.value.what
    assert "aarch64" in caught.value.why


def test_every_host_that_fails_is_named(tmp_path: Path, host: RpcClient) -> None:
    with client("h2", tmp_path / "home2") as second:

        def fail(one: RpcClient) -> None:
            raise PrepareError(f"{one.host.name} is full", fix="make room")

        with pytest.raises(PrepareError, match="h1, h2") as caught:
            side_by_side([host, second], fail)
    assert caught.value.fix == "make room"
