"""Installed distributions are turned back into wheels that install as they were."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gadgets import source
from shanty.launch.content import wheels
from shanty.launch.content.wheels import Scheme, Wheel, wheel_of
from shanty.runtime.errors import PrepareError

HERE = {kind: Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "data")}


def info_of(name: str) -> Path:
    return next(HERE["purelib"].glob(f"{name}-*.dist-info"))


def whole(wheel: Wheel) -> dict[str, bytes]:
    """The members of a wheel, after its RECORD has been compared with each."""
    with zipfile.ZipFile(wheel.path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert hashlib.sha256(wheel.path.read_bytes()).hexdigest() == wheel.sha256
    record = next(name for name in members if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(members[record].decode()))}
    assert rows.pop(record) == ["", ""]
    assert rows.keys() == members.keys() - {record}
    for name, (digest, size) in rows.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(members[name]).digest()).rstrip(b"=")
        assert (digest, int(size)) == (f"sha256={expected.decode()}", len(members[name]))
    return members


def installed(prefix: Path, files: dict[str, str], record: list[str]) -> Path:
    """An environment in which `demo` 1.0 is installed as pip does it; its metadata's folder."""
    site = prefix / "lib" / "python3" / "site-packages"
    info = site / "demo-1.0.dist-info"
    info.mkdir(parents=True)
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*files, *record]))
    return info


FILES = {
    "demo/__init__.py": "",
    "demo/__pycache__/__init__.cpython-311.pyc": "",
    "demo/data, with comma.txt": "data",
    "demo-1.0.dist-info/METADATA": "Name: demo\nVersion: 1.0\n",
    "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n",
    "demo-1.0.dist-info/INSTALLER": "pip",
    "demo-1.0.dist-info/direct_url.json": "{}",
    "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\nDemo = demo:main\n",
    "../../../bin/Demo": "#!/env/bin/python\n",
    "../../../bin/own": "#!/env/bin/python3.11\nprint(1)\n",
    "../../../bin/far": "#!/bin/sh\n'''exec' \"/env/bin/python\" \"$0\" \"$@\"\n' '''\nprint(2)\n",
    "../../../bin/shell": "#!/bin/bash\necho 3\n",
    "../../../share/demo/file": "shared",
}


def demo(tmp_path: Path, record: list[str], scheme: Scheme | None = None) -> Wheel:
    prefix = tmp_path / "env"
    info = installed(prefix, FILES, record)
    text = (info / "RECORD").read_text()
    name = "demo/data, with comma.txt"
    (info / "RECORD").write_text(text.replace(name, f'"{name}"'))
    for name in ("own", "far", "shell"):
        (prefix / "bin" / name).chmod(0o755)
    scheme = scheme or {"purelib": info.parent, "platlib": info.parent, "data": prefix}
    return wheel_of(info, scheme, tmp_path / "cache")


def test_every_kind_of_file_finds_its_place(tmp_path: Path) -> None:
    wheel = demo(tmp_path, ["demo/deleted.py"])
    assert wheel.path.name == "demo-1.0-py2.py3-none-any.whl"
    assert wheel.tags == ("any",)
    members = whole(wheel)
    assert members.keys() == {
        "demo/__init__.py",
        "demo/data, with comma.txt",
        "demo-1.0.dist-info/METADATA",
        "demo-1.0.dist-info/WHEEL",
        "demo-1.0.dist-info/RECORD",
        "demo-1.0.dist-info/entry_points.txt",
        "demo-1.0.data/scripts/own",
        "demo-1.0.data/scripts/far",
        "demo-1.0.data/scripts/shell",
        "demo-1.0.data/data/share/demo/file",
    }
    assert members["demo-1.0.data/scripts/own"] == b"#!python\nprint(1)\n"
    assert members["demo-1.0.data/scripts/far"] == b"#!python\nprint(2)\n"
    assert members["demo-1.0.data/scripts/shell"] == b"#!/bin/bash\necho 3\n"
    with zipfile.ZipFile(wheel.path) as archive:
        assert archive.getinfo("demo-1.0.data/scripts/own").external_attr >> 16 == 0o100755
        assert archive.getinfo("demo/__init__.py").external_attr >> 16 == 0o100644


def test_a_package_of_another_environment_on_the_path_is_whole_too(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    expected = whole(demo(own, []))
    assert whole(demo(other, [], HERE)) == expected


def test_a_file_outside_of_the_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    with pytest.raises(PrepareError, match=r"demo-1.0.dist-info cannot be sent"):
        demo(tmp_path, ["../../../../outside"])


def test_what_has_no_record_is_refused_by_name(tmp_path: Path) -> None:
    info = tmp_path / "demo-1.0.dist-info"
    info.mkdir()
    with pytest.raises(PrepareError, match=r"demo-1\.0") as caught:
        wheel_of(info, HERE, tmp_path / "cache")
    assert "RECORD" in caught.value.why


def test_it_is_made_once_and_always_the_same(tmp_path: Path) -> None:
    info = info_of("click")
    first = wheel_of(info, HERE, tmp_path / "cache")
    stamp = first.path.stat().st_mtime_ns
    assert wheel_of(info, HERE, tmp_path / "cache") == first
    assert first.path.stat().st_mtime_ns == stamp
    again = wheel_of(info, HERE, tmp_path / "other")
    assert again.sha256 == first.sha256


def test_a_wheel_that_was_being_made_is_made_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> Path:
        (folder / "half.whl").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.kept(tmp_path / "place", fail)
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(wheels.local_uv() is None, reason="uv installs the wheel")
@pytest.mark.parametrize("name", ["click", "numpy", "mpi4py"])
def test_a_real_package_installs_as_it_is_here(name: str, tmp_path: Path) -> None:
    uv = wheels.local_uv()
    assert uv is not None
    wheel = wheel_of(info_of(name), HERE, tmp_path / "cache")
    members = whole(wheel)
    assert not any("__pycache__" in one for one in members)
    words = ["pip", "install", "-q", "--offline", "--no-deps", "--no-cache", "--target"]
    subprocess.run([uv, *words, tmp_path / "target", wheel.path], check=True, timeout=60)
    for path in (HERE["purelib"] / name).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            there = tmp_path / "target" / path.relative_to(HERE["purelib"])
            assert there.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tag: py3-none-any\n", "a-1-py3-none-any.whl"),
        (
            "Tag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n",
            "a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        ),
        ("Build: 2\nTag: cp310-abi3-any\n", "a-1-2-cp310-abi3-any.whl"),
        ("", "a-1-py3-none-any.whl"),
    ],
)
def test_names_of_wheels(text: str, expected: str) -> None:
    assert wheels.file_name("a-1", text) == expected


# ------------------------------------------------------------------------- built ones


def test_an_editable_package_is_built_when_it_changes(tmp_path: Path) -> None:
    folder = source(tmp_path / "own source", "VALUE = 1\n", "own", "2.0")

    def built() -> Wheel:
        return wheels.editable_wheel("own", "2.0", folder.as_uri(), sys.executable, tmp_path / "c")

    first = built()
    with zipfile.ZipFile(first.path) as archive:
        assert archive.read("own.py") == b"VALUE = 1\n"
    stamp = first.path.stat().st_mtime_ns
    assert built() == first
    assert first.path.stat().st_mtime_ns == stamp
    (folder / "own.py").write_text("VALUE = 200\n")
    second = built()
    assert second.sha256 != first.sha256
    with zipfile.ZipFile(second.path) as archive:
        assert archive.read("own.py") == b"VALUE = 200\n"
    assert {path.name for path in folder.iterdir()} == {"own.py", "backend.py", "pyproject.toml"}


def test_what_cannot_be_built_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "local_uv", lambda: None)
    folder = source(tmp_path / "own", "VALUE = 1\n", "own", "2.0")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["nowhere_build"]\nbuild-backend = "nowhere_build.api"\n'
    )
    with pytest.raises(PrepareError) as caught:
        wheels.editable_wheel("own", "2.0", folder.as_uri(), sys.executable, tmp_path / "c")
    assert "own" in caught.value.what
    assert "nowhere_build" in caught.value.why
    assert "pip install 'nowhere_build'" in caught.value.fix


def test_a_source_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="the source folder of own does not exist"):
        wheels.editable_wheel("own", "1", "file:///nowhere/own", sys.executable, tmp_path)


def test_shanty_is_packed_as_it_runs(tmp_path: Path) -> None:
    wheel = wheels.shanty_wheel(tmp_path)
    members = whole(wheel)
    assert {"shanty/__init__.py", "shanty/runtime/boot.py", "shanty/py.typed"} <= members.keys()
    assert any(name.endswith("entry_points.txt") for name in members)
    assert wheels.shanty_wheel(tmp_path) == wheel
