"""The packages of an image, from a file of requirements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shanty.launch.containers import recipe
from shanty.runtime.errors import PrepareError


class Installer:
    """Stands in for venv and pip: `files` are those that pip got, `texts` what is in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.files: list[Path] = []
        self.texts: list[str] = []
        self._folder = folder
        monkeypatch.setattr(recipe, "_run", self._run)
        monkeypatch.setattr(recipe, "_installer", lambda python: ["pip", python])

    def _run(self, words: Sequence[str], folder: Path, _what: str) -> None:
        assert folder == self._folder / "work"  # of which paths like ./thing are
        if "venv" in words:
            python = Path(words[-1], "bin", "python")
            python.parent.mkdir(parents=True)
            python.touch()
        else:
            self.files.append(Path(words[words.index("-r") + 1]))
            self.texts.append(self.files[-1].read_text())

    def made_of(self, file: Path) -> str:
        work, home = self._folder / "work", self._folder / "home"
        return recipe._made_of(file, "python3", work, home, lambda _: None)


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Installer:
    (tmp_path / "work").mkdir()
    return Installer(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "-r more/base.txt", "-rmore/base.txt", "--requirement more/base.txt", "-c more/base.txt",
        "--constraint=more/base.txt  # of all", "-r 'more/base.txt'",
    ],
)  # fmt: skip
def test_files_that_a_file_names(installer: Installer, tmp_path: Path, line: str) -> None:
    file = tmp_path / "work" / "needs.txt"
    file.write_text(f"thing\n{line}\n-r gone.txt\n-r https://example.org/x.txt\n")
    base, last = file.parent / "more" / "base.txt", file.parent / "more" / "last.txt"
    base.parent.mkdir()
    base.write_text("-r last.txt\n-r ../needs.txt\n")
    last.write_text("other==1\n")
    first = installer.made_of(file)
    assert installer.made_of(file) == first
    assert installer.files == [file]  # where it is: the paths in it are of its own folder
    last.write_text("other==2\n")
    assert installer.made_of(file) != first
    assert installer.files == [file, file]


def test_the_dependencies_of_a_project(installer: Installer, tmp_path: Path) -> None:
    file = tmp_path / "work" / "pyproject.toml"
    file.write_text("[project]\ndependencies = ['thing>1', 'other']\n")
    first = installer.made_of(file)
    assert installer.texts == ["thing>1\nother\n"]
    file.write_text("[project]\ndependencies = ['thing>2', 'other']\n")
    assert installer.made_of(file) != first


def test_a_file_that_cannot_be_read(installer: Installer, tmp_path: Path) -> None:
    file = tmp_path / "work" / "needs.txt"
    file.write_text("-r base.txt\n")
    (file.parent / "base.txt").write_bytes(b"\xff")
    with pytest.raises(PrepareError, match="cannot be read"):
        installer.made_of(file)
