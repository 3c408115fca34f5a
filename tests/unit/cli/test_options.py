"""The options of a run, typed and in shanty.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from command_line import Cli
from shanty.client import jobs, options
from shanty.launch import settings
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec, Script


@pytest.mark.parametrize("text", ["0.001", "99999999999999h", "", "soon"])
def test_no_time_for_a_stall(text: str) -> None:
    with pytest.raises(UsageError):
        options.stall_after(text)


@pytest.mark.parametrize(("text", "wanted"), [("off", 0), ("OFF", 0), ("0", 0), ("2m", 120)])
def test_a_time_for_a_stall(text: str, wanted: float) -> None:
    assert options.stall_after(text) == wanted


_NUMBER = st.integers(0, 99)


@given(_NUMBER, _NUMBER, _NUMBER, _NUMBER)
def test_times_with_units(days: int, hours: int, minutes: int, rest: int) -> None:
    wanted = days * 86400 + hours * 3600 + minutes * 60 + rest
    assert options.seconds(f"{days}d{hours}h{minutes}m{rest}s") == wanted
    assert options.seconds(f" {hours}h{minutes}m{rest} ") == wanted - days * 86400
    assert options.seconds(f"{hours}:{minutes}:{rest:02d}") == wanted - days * 86400
    assert options.seconds(f"{minutes}:{rest:02d}") == minutes * 60 + rest
    assert options.seconds(f"{days}.5h") == (days + 0.5) * 3600


@example("9" * 400 + ":00")
@example("9" * 5000 + "s")
@given(st.text() | st.from_regex(r"[\d.:dhms \-+]{1,9}", fullmatch=True))
def test_a_time_is_a_number_or_refused(text: str) -> None:
    try:
        assert 0 <= options.seconds(text) < float("inf")
    except UsageError as error:
        assert repr(text) in error.what


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run\n", "is not valid TOML"),
        ("[run]\nrnaks = 2\n", "unknown key 'rnaks'"),
        ("[run]\nranks = 'two'\n", "ranks in [run]"),
        ("[run]\nranks = true\n", "must be a whole number, not True"),
        ("[run]\nranks = 0\n", "ranks must be at least 1"),
        ("[run]\ntime_limit = 'soon'\n", "invalid time 'soon'"),
        ("[run]\nenv = 'A=1'\n", "must be a table"),
        ("[run]\ntag = [1]\n", "tag"),
        ("run = 3\n", "run"),
        (b"[run]\nname = '\xff'\n", "cannot read"),
    ],
)
def test_a_bad_shanty_toml(cli: Cli, text: str | bytes, says: str) -> None:
    Path("shanty.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = cli("run", "--dry-run", "train.py")
    assert done.code == 2
    assert says in done.err
    assert "shanty.toml" in done.err or "time" in says or "at least" in says


def test_shanty_toml_gives_defaults(cli: Cli) -> None:
    Path("shanty.toml").write_text(
        "[run]\nranks = 2\ntime_limit = '2m'\ntag = ['a']\nenv = { A = 'x', B = 3 }\n"
    )
    done = cli("run", "--dry-run", "-e", "A=mine", "train.py")
    assert {"# ranks   2", "export A=mine", "export B=3"} <= set(done.out.splitlines())
    assert "# ranks   1" in cli("run", "--dry-run", "-n", "1", "train.py").out
    job = jobs.job_typed(Script("train.py"), Path.cwd(), {"env": {}, "tags": ("b",)})
    assert (job.time_limit, job.tags) == (120.0, ("b",))


def test_an_image_file_is_where_its_path_was_written(tmp_path: Path) -> None:
    """Whatever folder the ranks run in."""
    typed = options.typed({"image": "x.sif", "master_image": "./lead"})
    assert typed == {"image": f"{Path.cwd()}/x.sif", "master_image": f"{Path.cwd()}/lead"}
    (tmp_path / "shanty.toml").write_text("[run]\nimage = 'x.sif'\nmaster_image = 'python:3'\n")
    found = options.defaults(tmp_path)
    assert found == {"image": f"{tmp_path}/x.sif", "master_image": "python:3"}


def test_the_settings_of_stalls(tmp_path: Path) -> None:
    file = tmp_path / settings.FILE
    file.write_text("\ufeffon_stall = 'stop'\nstall_after = 0\n")  # as editors on Windows do
    found = settings.load(tmp_path)
    assert (found.on_stall, found.stall_after) == ("stop", 0)
    file.write_text("on_stall = 'shrug'\n")
    with pytest.raises(UsageError, match="warn or stop"):
        settings.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("p2.xlarge", (("p2.xlarge", 1),)),
        ("big:1, small:4", (("big", 1), ("small", 4))),
    ],
)
def test_machine_types(text: str, wanted: tuple[tuple[str, int], ...]) -> None:
    job = JobSpec(Script("x.py"), **options.typed({"machines": text, "priority": -2}))
    assert (job.machines, job.priority, job.share) == (wanted, -2, False)
    assert JobSpec.from_json(json.loads(json.dumps(job.to_json()))) == job


@pytest.mark.parametrize("text", ["", "big:", "big:0", "big:x", ":2", "big,,small", "big:1:2"])
def test_no_machine_types(text: str) -> None:
    with pytest.raises(UsageError, match="--machines takes"):
        options.typed({"machines": text})


def test_places_to_log_to(tmp_path: Path) -> None:
    """In one word or a list of them, each once; what was typed replaces what stands there."""
    (tmp_path / "shanty.toml").write_text("[run]\nlog_to = ['wandb', 'mlflow', 'wandb']\n")
    command = Script("x.py")
    nothing = {"env": {}, "log_to": None}
    assert jobs.job_typed(command, tmp_path, nothing).log_to == ("wandb", "mlflow")
    given = options.typed({"log_to": " tensorboard,mlflow,"})
    job = jobs.job_typed(command, tmp_path, {"env": {}, **given})
    assert job.log_to == ("tensorboard", "mlflow")
    assert JobSpec.from_json(json.loads(json.dumps(job.to_json()))) == job
    known = "tensorboard, mlflow or wandb"
    with pytest.raises(UsageError, match=f"--log-to takes {known}, not 'comet'"):
        options.typed({"log_to": "comet"})
