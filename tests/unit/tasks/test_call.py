"""Calls as they are written for ranks, and read there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from shanty.tasks import call

SOURCE = Path(__file__).parents[3] / "src"
RUNNER = SOURCE / "shanty" / "runtime" / "rank" / "run.py"


def write(folder: Path, func: Any, *args: Any, workspace: Path, elsewhere: bool = False) -> Path:
    folder.mkdir()
    call.write(folder, func, args, {}, workspace=workspace, each=False, elsewhere=elsewhere)
    return folder


def about_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "call.json").read_text())
    return found


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module in a folder that hosts lack."""
    place = tmp_path / "far"
    place.mkdir()
    (place / "stranger_of_test.py").write_text("BASE = 40\ndef add(x):\n    return BASE + x\n")
    monkeypatch.syspath_prepend(str(place))
    yield importlib.import_module("stranger_of_test")
    del sys.modules["stranger_of_test"]


def in_a_rank(folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Make the call in a process that has none of our modules."""
    env = {"PATH": os.defpath, "PYTHONPATH": str(SOURCE), "SHANTY_INPUTS": str(folder)}
    env |= {"SHANTY_RUN_DIR": str(tmp_path), "SHANTY_RANK": "0"}
    return subprocess.run(
        [sys.executable, RUNNER, "-m", "shanty.tasks.rank"],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_what_was_written_is_read(tmp_path: Path) -> None:
    offset = 2
    folder = write(tmp_path / "call", lambda x: x + offset, 40, workspace=tmp_path)
    func, args, kwargs = call.read(folder)
    assert func(*args, **kwargs) == 42
    assert about_of(folder)["python"] == list(sys.version_info[:2])
    assert (folder / "lib" / "cloudpickle" / "__init__.py").is_file()


def test_modules_that_hosts_lack_go_by_value(tmp_path: Path, stranger: ModuleType) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    folder = write(tmp_path / "call", stranger.add, 2, workspace=workspace, elsewhere=True)
    assert b"stranger_of_test" in (folder / "call.pickle").read_bytes()  # its name for tracebacks
    about = about_of(folder)
    (folder / "call.json").write_text(json.dumps({**about, "first": [], "paths": []}))
    done = in_a_rank(folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_modules_that_ranks_see_are_imported(tmp_path: Path, stranger: ModuleType) -> None:
    folder = write(tmp_path / "call", stranger.add, 2, workspace=tmp_path)
    assert in_a_rank(folder, tmp_path).returncode == 0
    about = about_of(folder)
    assert "far" in about["first"]  # below the workspace, so by a path in it
    (folder / "call.json").write_text(json.dumps({**about, "first": [], "paths": []}))
    assert "No module named 'stranger_of_test'" in in_a_rank(folder, tmp_path).stderr


def test_ranks_import_in_the_order_of_the_caller(
    tmp_path: Path, stranger: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies about in the folder of the code, and is not imported here, is not there either."""
    (tmp_path / "json.py").write_text("raise RuntimeError('not the one of Python')\n")
    (tmp_path / "only_there.py").touch()
    (tmp_path / "far" / "decimal.py").write_text("OWN = True\n")
    monkeypatch.syspath_prepend(str(tmp_path / "far"))  # the first that the caller has
    folder = write(
        tmp_path / "call", exec, "import json, only_there, decimal; assert decimal.OWN", {},
        workspace=tmp_path,
    )  # fmt: skip
    done = in_a_rank(folder, tmp_path)
    assert done.returncode == 0, done.stderr


def test_calls_are_written_side_by_side(tmp_path: Path, stranger: ModuleType) -> None:
    """What a module is for cloudpickle is the same for all threads."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    begin = threading.Barrier(4)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        begin.wait()
        try:
            for again in range(3):
                folder = write(
                    tmp_path / f"{number}-{again}", stranger.add, 2,
                    workspace=workspace, elsewhere=True,
                )  # fmt: skip
                assert b"BASE" in (folder / "call.pickle").read_bytes()
        except BaseException as error:  # noqa: BLE001  shown below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_modules_that_load_lazily_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "lazy_of_test", Lazy("lazy_of_test"))
    monkeypatch.setitem(sys.modules, "odd_of_test", 3)  # type: ignore[arg-type]
    write(tmp_path / "call", len, "abc", workspace=tmp_path / "none", elsewhere=True)


def test_another_python_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "call", len, "abc", workspace=tmp_path)
    about = about_of(folder)
    (folder / "call.json").write_text(json.dumps({**about, "python": [3, 9]}))
    done = in_a_rank(folder, tmp_path)
    assert done.returncode == 1
    here = ".".join(map(str, sys.version_info[:2]))
    assert f"the call comes from Python 3.9, and this rank's Python is {here}" in done.stderr
    assert "packages='sync'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_older_shanty_there_is_passed_over(tmp_path: Path) -> None:
    """The ranks' Python may have another one, which would not know how to read the call."""
    (tmp_path / "old" / "shanty").mkdir(parents=True)
    (tmp_path / "old" / "shanty" / "__init__.py").write_text("OLD = True\n")
    done = subprocess.run(
        [sys.executable, RUNNER, "-m", "shanty.tasks.rank"],
        env={"PYTHONPATH": str(tmp_path / "old"), "SHANTY_PACKAGE": str(SOURCE)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "by itself it has no call to make" in done.stderr


def test_without_a_call(tmp_path: Path) -> None:
    done = in_a_rank(tmp_path / "none", tmp_path)
    assert done.returncode == 1
    assert "by itself it has no call to make" in done.stderr
