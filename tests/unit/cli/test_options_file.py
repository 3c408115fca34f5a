"""The files of --optionsFile: they say what could be typed, and what is typed wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from command_line import Cli
from platform_calls import Made, plainly, watch
from shanty.integrations.gradient.flags import MULTINODE
from shanty.program import app
from shanty.runtime.errors import UsageError

MULTI = ("experiments", "create", "multinode")
NEEDED = {
    "experimentType": "MPI", "workerMachineType": "small", "workerCount": 2,
    "masterCommand": "mpirun -np 3 x", "workspace": "none",
}  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
VALUES = {
    "name": TEXTS, "tag": st.lists(TEXTS, max_size=3), "masterCommand": TEXTS,
    "workerCount": st.integers(0, 9), "masterCount": st.integers(1, 9), "vpc": st.booleans(),
    "experimentEnv": st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=3),
    "isPreemptible": st.just(True), "ports": st.integers(1, 65535) | TEXTS,
}  # fmt: skip
KEYS = ["name", "tag", "workerCount", "experimentEnv", "vpc", "datasets", "x"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda each: st.lists(each) | st.dictionaries(TEXTS, each),
    max_leaves=8,
)


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return watch(home, monkeypatch)


def write(values: Any, name: str = "options.yaml") -> str:
    Path(name).write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return name


def multinode() -> click.Command:
    context = click.Context(app)
    found: Any = app
    for word in MULTI:
        found = found.get_command(context, word)
    return found  # type: ignore[no-any-return]


def parsed(*words: str) -> dict[str, Any]:
    """What click makes of the words."""
    command = multinode()
    return command.make_context("multinode", list(words)).params


def typed(values: dict[str, Any]) -> list[str]:
    """The words that say the same as a file."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [word for each in value for word in (f"--{name}", each)]
        else:
            words += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


@example({"name": "-x", "tag": ["--vpc"], "ports": "null"})
@example({"experimentEnv": {"A": True, "B": 1}})
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_file_says_what_could_be_typed(tmp_path: Path, values: dict[str, Any]) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert parsed("--optionsFile", str(file)) == parsed(*typed(values))


@given(ANYTHING, st.sampled_from(KEYS))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused(tmp_path: Path, value: Any, key: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(yaml.safe_dump({key: value}), encoding="utf-8")
    try:
        parsed("--optionsFile", str(file))
    except (UsageError, click.UsageError) as error:
        says = error.format_message() if isinstance(error, click.UsageError) else str(error)
        assert key in says


def test_what_is_typed_wins(cli: Cli, made: Made) -> None:
    file = write({**NEEDED, "name": "of-the-file", "tag": "a", "experimentEnv": {"A": 1}})
    assert cli(*MULTI, "--optionsFile", file, "--name", "typed").code == 0
    assert (made.job.name, made.job.tags, made.job.env) == ("typed", ("a",), {"A": "1"})
    made.jobs.clear()
    assert cli(*MULTI, "--workerCount", "5", "--optionsFile", file, "--tag", "b").code == 0
    assert (made.job.machines[1], made.job.tags) == (("small", 5), ("b",))


def test_datasets_are_a_list_of_objects(cli: Cli, made: Made) -> None:
    datasets = [{"uri": "/srv/a"}, {"uri": "/srv/b", "name": "digits", "etag": None}]
    images = {"masterContainer": "m", "workerContainer": "m"}
    file = write({**NEEDED, **images, "datasets": datasets})
    assert cli(*MULTI, "--optionsFile", file).code == 0
    assert [mount[:2] for mount in made.job.mounts[:2]] == [
        ("/srv/a", "/data/a"),
        ("/srv/b", "/data/digits"),
    ]


def test_a_template_can_be_filled_in(cli: Cli, made: Made) -> None:
    words = [f"--{name}={value}" for name, value in NEEDED.items()]
    secrets = ("--apiKey", "hunter2", "--workspacePassword", "hunter3")
    done = cli(*MULTI, "--createOptionsFile", "new.yaml", *words, "--tag", "a", *secrets)
    assert done.code == 0 and not made.jobs
    text = Path("new.yaml").read_text()
    assert "hunter" not in text + done.err
    names = {name[2:] for each in MULTINODE for name in [each.name.split("/")[0]]}
    assert names <= set(yaml.safe_load(text))
    assert cli(*MULTI, "--optionsFile", "new.yaml").code == 0
    of_the_file = plainly(made.jobs.pop())
    assert cli(*MULTI, *words, "--tag", "a").code == 0
    assert of_the_file == plainly(made.job)
    assert "is there already" in cli(*MULTI, "--createOptionsFile", "new.yaml").err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not valid YAML"),
        ("- a", "has no flags"),
        ("nmae: x", "did you mean name?"),
        ("frobnicate: x", "--createOptionsFile FILE writes"),
        ("name: [a]", "is to be one value"),
        ("datasets: [{url: x}]", "options.yaml, line 1: 'url' of datasets is not a flag"),
        ("workerCount: many", "many"),
        ("a: &a [*a]", "a"),
    ],
)
def test_mistakes(cli: Cli, made: Made, text: str, says: str) -> None:
    done = cli(*MULTI, "--optionsFile", write(text))
    assert done.code == 2, done
    assert says in " ".join(done.err.split())
    assert not made.jobs


def test_a_file_that_is_not_there(cli: Cli) -> None:
    assert "options file x.yaml not found" in cli(*MULTI, "--optionsFile", "x.yaml").err


@pytest.mark.parametrize("verb", [("list",), ("stop",), ("metrics", "get"), ("tags", "add")])
def test_other_verbs_take_files_as_well(cli: Cli, verb: tuple[str, ...]) -> None:
    done = cli("experiments", *verb, "--createOptionsFile", "x.yaml")
    assert done.code == 0, done.err
    assert set(yaml.safe_load(Path("x.yaml").read_text())) & {"id", "limit"}
