"""What of shanty travels to a host: the agents, and what a script imports; never cli or launch."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import shanty

_PARTS = (
    "__init__.py",
    "_script.py",
    "py.typed",
    "runtime",
    "collectives",
    "compat",
    "torch",
    "xgboost",
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of one version of shanty's code, by their paths below the package's folder."""

    version: str  # a hash over all that is in it
    files: tuple[tuple[str, bytes, int], ...]  # path, content, mode

    def tar(self) -> bytes:
        """All of it as tar.gz."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for path, content, mode in self.files:
                info = tarfile.TarInfo(f"shanty/{path}")
                info.size, info.mode = len(content), mode
                tar.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


@cache
def bundle() -> Bundle:
    """The bundle of the shanty that is running."""
    root = Path(shanty.__file__).parent
    files = []
    digest = hashlib.sha256()
    for path in sorted(_paths(root)):
        content = path.read_bytes()
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{mode}\0{len(content)}\0".encode() + content)
        files.append((name, content, mode))
    return Bundle(digest.hexdigest()[:20], tuple(files))


def _paths(root: Path) -> list[Path]:
    found = []
    for part in _PARTS:
        path = root / part
        candidates = path.rglob("*") if path.is_dir() else (path,)
        found += [p for p in candidates if p.is_file() and "__pycache__" not in p.parts]
    return found
