"""Layers of images: wheels put where an installer puts them, tars with the same bytes each time."""

from __future__ import annotations

import io
import os
import posixpath
import subprocess
import sys
import tarfile
import venv as venvs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.containers import layer
from shanty.launch.containers.layer import Entry, Venv, blocks, installed
from shanty.launch.content.wheels import Member
from shanty.runtime.errors import UsageError

KEY = f"{sys.version_info[0]}.{sys.version_info[1]}"
VENV = Venv("/opt/v", "/usr/bin/python3", "3.11.2", "3.11", "cpython-311")
INFO = "thing-1.0.dist-info"

names = st.text("abc", min_size=1, max_size=2)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


def tar_of(entries: list[Entry]) -> bytes:
    return b"".join(blocks(entries))


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=8), st.randoms())
def test_a_tar_has_what_went_in_in_whatever_order(files: dict[str, bytes], random) -> None:
    entries = [Entry(path, data, program=len(data) % 2 == 0) for path, data in files.items()]
    whole = tar_of(entries)
    random.shuffle(entries)
    assert tar_of(entries) == whole
    folders = {parent for path in files for parent in layer._parents(path.lstrip("/"))}
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        members = tar.getmembers()
        found = {m.name: tar.extractfile(m).read() for m in members if m.isreg()}  # type: ignore[union-attr]
    assert found == {p.lstrip("/"): d for p, d in files.items() if p.lstrip("/") not in folders}
    listed = [m.name for m in members]
    assert len(listed) == len(set(listed))
    for member in members:  # a folder comes before what is in it, and nobody's name is in there
        parent = posixpath.dirname(member.name)
        assert not parent or parent in listed[: listed.index(member.name)]
        assert (member.uid, member.gid, member.uname, member.mtime) == (0, 0, "", layer._TIME)


def test_the_times_of_files_make_no_difference(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 5000)
    first = tar_of([Entry("/x/a", file), Entry("/x/l", link="a")])
    os.utime(file, (1, 1))
    file.chmod(0o600)
    assert tar_of([Entry("/x/l", link="a"), Entry("/x/a", file)]) == first


def placed(*members: Member) -> dict[str, Entry]:
    return {entry.path: entry for entry in installed(members, VENV)}


def test_the_parts_of_a_wheel_go_where_an_installer_puts_them() -> None:
    found = placed(
        Member("thing/__init__.py", b"x = 1\n"),
        Member("thing-1.0.data/purelib/pure.txt", b""),
        Member("thing-1.0.data/scripts/run", b"#!python\nprint(1)\n", True),
        Member("thing-1.0.data/data/share/doc", b""),
        Member("thing-1.0.data/headers/thing.h", b""),
        Member(f"{INFO}/entry_points.txt", b"[console_scripts]\ngo = thing.cli:main.run [extra]\n"),
    )
    site = "/opt/v/lib/python3.11/site-packages"
    assert {f"{site}/thing/__init__.py", f"{site}/pure.txt", "/opt/v/share/doc"} <= found.keys()
    assert "/opt/v/include/site/python3.11/thing/thing.h" in found
    assert found["/opt/v/bin/run"].content == b"#!/opt/v/bin/python\nprint(1)\n"
    go = found["/opt/v/bin/go"]
    assert go.program and isinstance(go.content, bytes)
    assert b"from thing.cli import main\n" in go.content and b"main.run()" in go.content
    record = found[f"{site}/{INFO}/RECORD"].content
    assert isinstance(record, bytes)
    listed = [line.split(",")[0] for line in record.decode().splitlines()]
    assert sorted(posixpath.normpath(f"{site}/{path}") for path in listed) == sorted(found)


@given(st.text("ab./-", max_size=12))
def test_no_member_lands_outside(name: str) -> None:
    for member in (name, f"thing-1.0.data/scripts/{name}", f"thing-1.0.data/data/{name}"):
        try:
            found = placed(Member(member, b""))
        except UsageError:
            continue
        assert all(path.startswith("/opt/v/") for path in found)


@pytest.mark.parametrize(
    "text", [b"[console_scripts]\n../../evil = a:b\n", b"[[\xff", b"[x]\na=b\n"]
)
def test_odd_entry_points_make_no_program(text: bytes) -> None:
    found = placed(Member(f"{INFO}/entry_points.txt", text))
    assert not [path for path in found if path.startswith("/opt/v/bin/")]


def test_what_is_put_together_works(tmp_path: Path) -> None:
    """A layer, unpacked where its environment says that it is, is one that this Python takes."""
    folder = str(tmp_path / "v")
    base = os.path.realpath(sys.executable)
    version = ".".join(map(str, sys.version_info[:3]))
    mine = Venv(folder, base, version, KEY, sys.implementation.cache_tag or "")
    source = tmp_path / "mod.py"
    source.write_text("x = 7\n")
    subprocess.run([base, "-m", "py_compile", "mod.py"], cwd=tmp_path, check=True)
    members = [
        Member("thing/__init__.py", b"def main():\n    import mod\n    return mod.x\n"),
        Member("mod.py", source),
        Member("bad.py", b"def (:\n"),
        Member(f"{INFO}/METADATA", b"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"),
        Member(f"{INFO}/entry_points.txt", b"[console_scripts]\ngo = thing:main\n"),
    ]
    data = tar_of([*mine.entries(), *installed(members, mine)])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        new = [one for one in tar if not Path("/", one.name).is_dir()]  # /tmp keeps its mode
        tar.extractall("/", members=new, filter="fully_trusted")
    assert subprocess.run([f"{folder}/bin/go"], check=False).returncode == 7
    text = "import sys, mod, thing; print(sys.prefix, mod.__cached__, thing.__cached__)"
    done = subprocess.run(
        [mine.python, "-v", "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == folder
    for cached in done.stdout.split()[1:]:
        assert f"code object from '{cached}'" in done.stderr
    said = subprocess.run(
        [mine.python, "-c", "from importlib.metadata import version as v; print(v('thing'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "1.0\n"


def test_an_environment_is_what_venv_makes(tmp_path: Path) -> None:
    venvs.create(tmp_path / "real", with_pip=False)
    real = (tmp_path / "real" / "pyvenv.cfg").read_text()
    text = VENV.entries()[0].content
    assert isinstance(text, bytes)
    keys = {line.split(" = ")[0] for line in text.decode().splitlines()}
    assert keys <= {line.split(" = ")[0] for line in real.splitlines()}
