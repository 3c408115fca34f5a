"""The command lines of engines, and what their words mean."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.client import options
from shanty.runtime.containers import engine_errors
from shanty.runtime.containers.container import Container, Mount
from shanty.runtime.containers.engines import ENGINES, PROGRAMS, environ_of, wrapped

LETTERS = st.characters(exclude_characters="\0/", exclude_categories=("Cs",))
PATHS = st.text(LETTERS, min_size=1).map(lambda text: f"/{text}")
PLAIN = Container("docker", "/usr/bin/docker", "sha256:1", "shanty-x.1", "/home/ann/work/x.1")


def pairs(argv: list[str], option: str) -> list[str]:
    """The values that an option has in a command line."""
    return [value for name, value in pairwise(argv) if name == option]


def test_the_command_line_knows_all_engines() -> None:
    assert set(options.ENGINES) == set(ENGINES) == set(PROGRAMS)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_command_is_all_that_runs_in_it(engine: str) -> None:
    container = PLAIN._replace(engine=engine, program=f"/usr/bin/{engine}")
    argv = wrapped(container, ["/bin/sh", "-c", "exit 3"])
    assert argv[:2] == [f"/usr/bin/{engine}", "run"]
    assert argv[-5:] == ["--entrypoint", "/bin/sh", "sha256:1", "-c", "exit 3"]
    assert "--rm" in argv and "--interactive" in argv
    assert pairs(argv, "--network") == ["host"]
    assert pairs(argv, "--log-driver") == ["none"]
    assert pairs(argv, "--pull") == ["never"]


def test_whose_processes_they_are() -> None:
    docker = PLAIN._replace(user="1000:100", groups=(4, 27))
    argv = wrapped(docker, ["true"])
    assert pairs(argv, "--user") == ["1000:100"]
    assert pairs(argv, "--group-add") == ["4", "27"]
    rootless = wrapped(PLAIN._replace(engine="podman"), ["true"])
    assert pairs(rootless, "--userns") == ["keep-id"]
    assert "--user" not in rootless


@given(st.lists(st.tuples(PATHS, PATHS, st.sampled_from(["rw", "ro"])), max_size=4))
def test_mounts_are_read_back_as_they_were(mounts: list[tuple[str, str, str]]) -> None:
    container = PLAIN._replace(mounts=tuple(Mount(*one) for one in mounts))
    found = []
    for text in pairs(wrapped(container, ["true"]), "--mount"):
        (fields,) = csv.reader(io.StringIO(text, newline=""))  # as docker and podman do
        kind, source, target, *mode = fields
        assert kind == "type=bind"
        found.append((source.removeprefix("source="), target.removeprefix("target="), mode))
    assert found == [(a, b, ["readonly"] * (mode == "ro")) for a, b, mode in mounts]


@given(st.builds(Mount, PATHS, PATHS, st.sampled_from(["rw", "ro"])), st.dictionaries(PATHS, PATHS))
def test_a_container_is_one_word(mount: Mount, environment: dict[str, str]) -> None:
    container = PLAIN._replace(mounts=(mount,), groups=(1,), environment=environment)
    word = container.packed()
    assert word.replace("-", "").replace("_", "").replace("=", "").isalnum()
    assert Container.unpacked(word) == container


def test_gpus() -> None:
    for gpus, docker, podman in (
        ("", [], []),
        ("all", ["all"], ["nvidia.com/gpu=all"]),
        ("0,1", ['"device=0,1"'], ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]),
    ):
        assert pairs(wrapped(PLAIN._replace(gpus=gpus), ["true"]), "--gpus") == docker
        other = PLAIN._replace(engine="podman", gpus=gpus)
        assert pairs(wrapped(other, ["true"]), "--device") == podman
    assert "--nv" in wrapped(PLAIN._replace(engine="apptainer", gpus="0"), ["true"])


NODE: Any = SimpleNamespace(name="lab2", container={"engine": "docker"})


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "permission denied while trying to connect to the Docker daemon socket",
            "this user may not use docker",
        ),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "does not run"),
        ("Error: pull access denied for x, unauthorized: authentication required", "does not let"),
        ("Error response from daemon: manifest for x:9 not found", "no image of that name"),
        ("dial tcp: lookup registry-1.docker.io: no such host", "cannot be reached"),
        ("write /var/lib/docker/tmp: no space left on device", "is full"),
        ('could not select device driver "" with capabilities: [[gpu]]', "give GPUs"),
        ("newuidmap: write to uid_map failed: Operation not permitted", "user namespaces"),
        (
            "\x1b[31mFATAL:  \x1b[0m Couldn't determine user account information: "
            "user: unknown userid 4321",
            "no name on the host (Couldn't determine user account",
        ),
    ],
)
def test_words_of_engines_have_a_meaning_and_a_cure(said: str, meaning: str) -> None:
    why, fix = engine_errors.explained(
        f"some line\n{said}\nRun 'docker run --help' for more information"
    )
    assert meaning in why
    assert fix
    failure = engine_errors.ended(NODE, 125, said, began=False)
    assert failure.what == "Docker could not start the container on host lab2"
    assert (failure.host, failure.fix) == ("lab2", fix)


@pytest.mark.parametrize(
    "said",
    ["docker: Error response from daemon: No such image: sha256:1f.", "Error: 1f: image not known"],
)
def test_an_image_that_is_not_there_may_be_one_for_slurm(said: str) -> None:
    """Nothing brings it to nodes that Slurm gives."""
    why, fix = engine_errors.explained(said)
    assert "does not have the image" in why
    assert "Slurm's nodes" in fix
    assert "image file" in fix


@given(st.text())
def test_any_words_do(said: str) -> None:
    why, _ = engine_errors.explained(said)
    assert "\n" not in why


def test_a_container_that_was_killed() -> None:
    for code in (137, -9):
        assert engine_errors.ended(NODE, code, "", began=True).what.endswith("lab2 was killed")
    ended = engine_errors.ended(NODE, 3, "", began=True)
    assert ended.what == "the container on host lab2 ended"
    assert "3" in ended.why


SECRET = 'http://me:pass,word="1"@proxy:3128/?a=b'


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_what_is_handed_on_is_on_no_command_line(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("http_proxy", SECRET)
    container = PLAIN._replace(
        engine=engine, program=f"/usr/bin/{engine}", variables=("http_proxy", "https_proxy")
    )
    assert not [word for word in wrapped(container, ["true"]) if "pass" in word]


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_apptainer_gets_values_as_they_are(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("http_proxy", SECRET)
    monkeypatch.delenv("https_proxy", raising=False)
    container = PLAIN._replace(
        engine="apptainer", program=f"/opt/bin/{program}", gpus="0,1",
        variables=("http_proxy", "https_proxy"), environment={"SHANTY_HOME": "/a,b=c"},
    )  # fmt: skip
    values = {"http_proxy": SECRET, "CUDA_VISIBLE_DEVICES": "0,1", "SHANTY_HOME": "/a,b=c"}
    prefix = f"{program.upper()}ENV_"
    assert environ_of(container) == {f"{prefix}{name}": value for name, value in values.items()}
