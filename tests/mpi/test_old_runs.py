"""Runs that an older version has begun are run again, as new runs of this version."""

from __future__ import annotations

import pytest

from old_runs import old_run
from runs import Shanty


@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("local", "sum 2", 0),
        ("local-failed", "sum 2", 3),
        ("local-attempts", "sum 2", 0),
        ("machines-local", "begins", 0),
    ],
)
def test_one_is_run_again(shanty: Shanty, name: str, said: str, code: int) -> None:
    old = old_run(name, shanty.home, shanty.folder)
    if name.startswith("machines"):
        assert shanty("machines", "add", "here", "--on", "local").returncode == 0
    done = shanty("rerun", old.id)
    assert done.returncode == code, done.stderr
    assert said in done.stdout
    (new,) = {path.name for path in (shanty.home / "runs").iterdir()} - {old.id}
    followed = shanty("logs", "-f", new)
    assert (followed.returncode, sorted(followed.stdout.splitlines())) == (
        0,
        sorted(done.stdout.splitlines()),
    )


def test_one_in_the_queue_begins(shanty: Shanty) -> None:
    """What waited when shanty was upgraded is given machines by the new version."""
    run = old_run("machines-waiting", shanty.home, shanty.folder)
    assert shanty("machines", "add", "here", "--on", "local").returncode == 0
    done = shanty("logs", "-f", run.id)
    assert (done.returncode, done.stdout) == (0, "begins\n"), done.stderr
    assert shanty.status()["state"] == "succeeded"
