"""A rank misses a file that is here."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shanty.launch.content.unsent import explained

PLACES = ("/store/workspaces/ab",)


def python(path: str | Path) -> list[str]:
    return ["Traceback", f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"]


def make(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")


def test_what_git_ignores_is_named_with_the_rule(tmp_path: Path) -> None:
    make(tmp_path, "train.py", "data/a.csv", "kept/b.csv")
    (tmp_path / ".gitignore").write_text("# data\n/data\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    what, fix = explained(tmp_path, python("data/a.csv"), PLACES) or ("", "")
    assert what == (
        "data/a.csv exists here, but was not sent to the hosts: the pattern /data in .gitignore, "
        "line 2, leaves it out"
    )
    assert "--inputs data" in fix
    assert explained(tmp_path, ["cat: data/a.csv: No such file or directory"], PLACES)
    assert explained(tmp_path, python("/store/workspaces/ab/data/a.csv"), PLACES)
    assert explained(tmp_path, python("data"), PLACES)
    what, fix = explained(tmp_path, python("kept/b.csv"), PLACES) or ("", "")
    assert what.startswith("kept/b.csv was sent to the hosts")
    assert "removed during the run" in fix
    assert explained(tmp_path, python("data/none.csv"), PLACES) is None
    subprocess.run(["git", "add", "-f", "data/a.csv"], cwd=tmp_path, check=True)
    what, _ = explained(tmp_path, python("data/a.csv"), PLACES) or ("", "")
    assert what.startswith("data/a.csv was sent to the hosts")


def test_what_shantyignore_leaves_out_and_paths_of_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    make(folder, "train.py", "big.bin")
    make(tmp_path, "elsewhere.csv")
    (folder / ".shantyignore").write_text("*.bin\n")
    what, _ = explained(folder, python("big.bin"), PLACES) or ("", "")
    assert ".shantyignore leaves it out" in what
    what, fix = explained(folder, python(folder / "train.py"), PLACES) or ("", "")
    assert "is a path of this machine" in what
    assert fix.endswith("train.py")
    what, _ = explained(folder, python(tmp_path / "elsewhere.csv"), PLACES) or ("", "")
    assert what.endswith("hosts receive the workspace only")


def test_a_module_that_git_ignores(tmp_path: Path) -> None:
    make(tmp_path, "train.py", "lib/helper.py", "lib/kept.py", ".venv/site-packages/torch.py")
    (tmp_path / "lib" / ".gitignore").write_text("help*\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in ("helper", "lib.helper"):
        lines = ["Traceback", f"ModuleNotFoundError: No module named '{name}'"]
        what, fix = explained(tmp_path, lines, PLACES) or ("", "")
        assert "lib/helper.py exists here, but was not sent to the hosts: the pattern help*" in what
        assert fix == "track it (git add -f lib/helper.py), or change that pattern"
    for name in ("kept", "torch", "none"):
        lines = [f"ModuleNotFoundError: No module named '{name}'"]
        assert explained(tmp_path, lines, PLACES) is None
