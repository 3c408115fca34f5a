"""The built pages: those of the sources, small, and nothing that the server's policy forbids."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "frontend"
STATIC = ROOT / "src" / "shanty" / "dashboard" / "static"
# As in frontend/scripts/built-from.mjs.
_NAMES = (
    "index.html",
    "package-lock.json",
    "package.json",
    "public",
    "src",
    "tsconfig.json",
    "vite.config.ts",
)
_LARGEST = 150_000  # bytes, compressed

needs_sources = pytest.mark.skipif(
    not SOURCES.is_dir(), reason="the front end's sources are not here"
)


def hash_of_sources() -> str:
    """What the bundle would be said to be built from now."""
    files = [
        path
        for name in _NAMES
        for path in (
            [SOURCES / name] if (SOURCES / name).is_file() else (SOURCES / name).rglob("*")
        )
        if path.is_file()
    ]
    found = hashlib.sha256()
    for name, path in sorted(
        (path.relative_to(SOURCES).as_posix().encode(), path) for path in files
    ):
        content = path.read_bytes()
        found.update(name + b"\0" + str(len(content)).encode() + b"\0" + content)
    return found.hexdigest()


@needs_sources
def test_the_pages_are_built_from_these_sources() -> None:
    built = (STATIC / "built-from.txt").read_text(encoding="utf-8").split()
    assert built == ["sha256", hash_of_sources()], "build and commit them: ./dev frontend"


@needs_sources
def test_the_types_are_those_of_the_api() -> None:
    made = runpy.run_path(str(SOURCES / "scripts" / "api_types.py"))["text"]()
    assert (SOURCES / "src" / "api.ts").read_text(encoding="utf-8") == made, "./dev frontend"


@needs_sources
def test_packages_come_from_the_public_registry_alone() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))
    named = {package["resolved"] for package in lock["packages"].values() if "resolved" in package}
    assert all(address.startswith("https://registry.npmjs.org/") for address in named)


def test_the_page_needs_only_what_is_here() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(wanted) >= 3
    for address in wanted:
        assert (STATIC / address.removeprefix("/")).is_file(), address
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=", page)


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in (*STATIC.rglob("*.css"), *STATIC.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|url\((?!#)", text), path.name


def test_all_of_it_is_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < _LARGEST
