"""The variables of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.cli.show import _typed
from shanty.client import jobs
from shanty.client.command import bring_script, refuse_in_ranks
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.spec import JobSpec, Script


def test_environment_variables() -> None:
    given = ["A=1", "B=", "C=x=y ' z", "HOME", "UNSET", "A=2"]
    assert jobs.environment(given, [], {"HOME": "/home/ann"}) == {
        "A": "2",
        "B": "",
        "C": "x=y ' z",
        "HOME": "/home/ann",
    }
    for bad in ("=1", "A B=1", " =", "A\nB=1"):
        with pytest.raises(UsageError, match="not KEY=VALUE"):
            jobs.environment([bad], [], {})


def test_env_files(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("\ufeff#\n\nexport A=1\n B = two words \nC='a b'\nD=\"\"\nE='x\nUSER\nNONE\n")
    assert jobs.environment(["A=9"], [file], {"USER": "ann"}) == {
        "A": "9",
        "B": "two words",
        "C": "a b",
        "D": "",
        "E": "'x",
        "USER": "ann",
    }
    file.write_text("A=1\n=2\n")
    with pytest.raises(UsageError, match=r"env, line 2: '=2'"):
        jobs.environment([], [file], {})
    file.write_text("A=1\0\n")
    with pytest.raises(UsageError, match="NUL"):
        jobs.environment([], [file], {})
    file.write_bytes(b"A=\xff\n")
    with pytest.raises(NotFoundError):
        jobs.environment([], [file], {})


def job_elsewhere(path: Path, workdir: Path) -> JobSpec:
    return JobSpec(Script(str(path), ("--lr", "1")), on="lab", workdir=str(workdir))


def test_a_script_of_another_folder_brings_that(tmp_path: Path) -> None:
    found = bring_script(job_elsewhere(tmp_path / "own" / "train.py", tmp_path / "here"))
    assert (found.workdir, found.command) == (
        str(tmp_path / "own"),
        Script("train.py", ("--lr", "1")),
    )


@pytest.mark.parametrize("folder", ["/home/ann", "/home", "/", "/tmp"])
def test_not_where_that_is_a_home(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    with pytest.raises(UsageError) as raised:
        bring_script(job_elsewhere(Path(folder, "train.py"), Path("/srv/own")))
    assert "--workdir" in raised.value.fix
    assert bring_script(job_elsewhere(Path("/home/ann/x/train.py"), Path("/srv")))


RANK = {"SHANTY_REPORTS": "/r/reports", "PMI_RANK": "1", "WORLD_SIZE": "2"}


def test_a_rank_of_several_starts_no_run() -> None:
    with pytest.raises(UsageError, match="this is a rank of a run"):
        refuse_in_ranks(RANK)
    refuse_in_ranks({**RANK, "WORLD_SIZE": "1"})
    for name in RANK:
        refuse_in_ranks({key: value for key, value in RANK.items() if key != name})


def test_options_that_are_given_several_times_can_be_typed_again() -> None:
    given = {"labels": ("team=ml", "a=b"), "mounts": (("pvc:data", "/data", "ro"),), "keep": True}
    words = "--label team=ml --label a=b --mount pvc:data:/data:ro --keep"
    assert _typed(given) == words
