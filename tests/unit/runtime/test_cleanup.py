"""What the sweep takes, and above all what it leaves."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from shanty.runtime import cleanup, platform

OWN = f"shantytest-{os.getpid()}"  # the other processes of the suite sweep the same folder

pytestmark = pytest.mark.skipif(not platform.SHARED_MEMORY, reason="there is no /dev/shm here")


@pytest.fixture
def segment():
    """A function that makes a file in /dev/shm; all are removed afterwards."""
    made: list[Path] = []

    def make(name: str) -> Path:
        path = Path(platform.SHARED_MEMORY, name)
        path.write_bytes(bytes(4096))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def test_forgotten_segments_go_and_others_stay(segment, tmp_path):
    before = time.time() - 1
    forgotten, stranger = segment(f"{OWN}-seg"), segment(f"precious-{OWN}")
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    removed = cleanup.sweep(str(scratch), (), [f"{OWN}-seg*"], before)
    assert not forgotten.exists()
    assert not scratch.exists()
    assert stranger.exists()
    assert set(removed) == {str(forgotten), str(scratch)}


def test_what_is_older_than_the_run_or_in_use_stays(segment, tmp_path):
    old = segment(f"{OWN}-old")
    assert cleanup.sweep(str(tmp_path / "x"), (), [f"{OWN}-*"], time.time() + 60) == []
    with old.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        cleanup.sweep(str(tmp_path / "x"), [str(old)], [f"{OWN}-*"], time.time() - 60)
        assert old.exists()


def test_a_users_own_file_that_was_there_before_is_not_the_runs(segment):
    data = segment(f"imagenet-{OWN}")
    with data.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert str(data) in cleanup.shared_memory_of([os.getpid()], time.time() - 60)
        assert str(data) not in cleanup.shared_memory_of([os.getpid()], time.time() + 60)


def test_a_removal_that_fails_at_first_is_tried_again(tmp_path):
    """podman's `rm` fails once if the container's monitor was killed before its container ended."""
    engine, container = tmp_path / "engine", tmp_path / "container"
    container.touch()
    engine.write_text(
        "#!/bin/sh\ncd \"${0%/*}\"\n"
        'case $1 in ps) [ -e container ] && echo container ;; rm) [ -e tried ] && rm container\n'
        "touch tried ;; esac; exit 0\n"
    )  # fmt: skip
    engine.chmod(0o755)
    cleanup.end_containers([str(engine)], "/a/run")
    assert not container.exists()
