"""Layers of images, taken from engines and handed to them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shanty.runtime.containers import archive
from shanty.runtime.containers.archive import Layer
from shanty.runtime.errors import PrepareError
from shanty.runtime.rpc import layers

CONTENT = bytes(range(256)) * 4096  # more than a pipe holds
DIGEST = hashlib.sha256(CONTENT).hexdigest()
CONFIG = json.dumps({"rootfs": {"diff_ids": [f"sha256:{DIGEST}"]}}).encode()
ENGINE = """#!/bin/sh
[ "$1" = image ] && {{ echo "Error: no such image" >&2; exit 1; }}
{words}
"""
Install = Callable[[str], str]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes an engine that does these words of a shell where it reads or writes an archive."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))

    def make(words: str) -> str:
        program = tmp_path / "engine"
        program.write_text(ENGINE.format(words=words))
        program.chmod(0o755)
        return str(program)

    return make


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_STALLED", 0.1)
    monkeypatch.setattr(layers, "_LAST", 0.1)


def test_an_image_goes_through_the_pipes_of_engines(engine: Install, tmp_path: Path) -> None:
    layer = layers.keep([CONTENT])
    assert layer == Layer(DIGEST, len(CONTENT))
    load = engine(f"cat > {tmp_path}/archive; echo loaded")
    assert layers._loaded(load, CONFIG, [layer], "x", lambda _: None) == "loaded"
    sink = io.BytesIO()
    archive.write(CONFIG, [layer], layers.content, sink)
    assert (tmp_path / "archive").read_bytes() == sink.getvalue()
    save = engine(f"cat {tmp_path}/archive")
    assert layers.read_layers("docker", save, "x", [DIGEST], lambda _: None) == CONFIG


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("begins", [0, 100_000])
def test_an_engine_that_stops_giving_an_image(engine: Install, tmp_path: Path, begins: int) -> None:
    with (tmp_path / "archive").open("wb") as file:
        archive.write(CONFIG, [Layer(DIGEST, len(CONTENT))], lambda _: [CONTENT], file)
    program = engine(f"head -c {begins} {tmp_path}/archive; echo a warning >&2; exec sleep 600")
    with pytest.raises(PrepareError, match="has stopped halfway"):
        layers.read_layers("docker", program, "x", [DIGEST], lambda _: None)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("begins", ["", "head -c 100000 > /dev/null"])
def test_an_engine_that_stops_taking_an_image(engine: Install, begins: str) -> None:
    layer = layers.keep([CONTENT])
    program = engine(f"{begins}\nexec sleep 600")
    with pytest.raises(PrepareError, match="has stopped halfway"):
        layers._loaded(program, CONFIG, [layer], "x", lambda _: None)


def test_an_engine_that_fails_says_why(engine: Install) -> None:
    layer = layers.keep([CONTENT])
    program = engine("head -c 1000 > /dev/null; echo no space left on device >&2; exit 1")
    with pytest.raises(PrepareError, match="full"):
        layers._loaded(program, CONFIG, [layer], "x", lambda _: None)
