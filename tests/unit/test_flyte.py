"""What a task of Flyte's asks for as options of a run, and the words of `shanty flyte run`."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from shanty.client.terminal import help_all
from shanty.integrations.flyte import command
from shanty.integrations.flyte.ranks import _check_cores, _of_image, _with_task
from shanty.integrations.flyte.task_options import Wanted, named_image
from shanty.runtime.errors import NotFoundError, UsageError

GIB = 1 << 30


def test_options_on_this_machine() -> None:
    wanted = Wanted("wf.train", 2, 2, {"cpu": 4, "mem": 8 * GIB, "gpu": 2}, backoff=1)
    assert wanted.options(hosts=None, queued=False) == {
        "ranks": 4,
        "retries": 1,
        "cpus_per_rank": 2,
        "memory_per_rank": 4 * GIB,
        "gpus_per_rank": 1,
    }
    assert wanted.described() == "2 workers of 2 slots, each 4 CPU, 8 GiB of memory, 2 GPU"


def test_less_than_a_core_binds_nothing() -> None:
    options = Wanted("wf.train", 4, 1, {"cpu": 0.5}).options(hosts=None, queued=False)
    assert options == {"ranks": 4, "oversubscribe": True}


@pytest.mark.parametrize(
    ("workers", "slots", "hosts", "each"), [(2, 1, 2, 1), (4, 1, 2, 2), (3, 2, 2, 4), (1, 4, 3, 4)]
)
def test_workers_are_shared_out_over_hosts(workers: int, slots: int, hosts: int, each: int) -> None:
    options = Wanted("wf.train", workers, slots).options(hosts=hosts, queued=False)
    assert (options["ranks"], options["ranks_per_host"]) == (workers * slots, each)
    queued = Wanted("wf.train", workers, slots).options(hosts=None, queued=True)
    assert queued["ranks_per_host"] == slots  # each worker is a node, or a pod


def test_a_shortfall_of_cores_has_numbers() -> None:
    wanted = Wanted("wf.train", 3, 2, {"cpu": 4})
    with pytest.raises(UsageError, match=r"wf\.train asks for 12 CPU, this machine has 8"):
        _check_cores(wanted, None, 8)
    _check_cores(wanted, 4, 8)  # -n 4: two workers
    _check_cores(wanted, None, 12)


def test_an_error_names_the_task_once() -> None:
    wanted = Wanted("wf.train", 2, 1, {"gpu": 1})
    error = _with_task(UsageError("no room", "it is full", "wait"), wanted)
    assert isinstance(error, UsageError)
    assert error.what == "wf.train cannot be run: no room"
    assert error.why == "it is full; wf.train asks for 2 workers of 1 slot, each 1 GPU"
    assert _with_task(error, wanted) is error


def test_an_image_that_is_not_taken_is_said() -> None:
    wanted = Wanted("wf.train", 2, 1, image="a:1")
    assert [*_of_image(wanted, "a:1"), *_of_image(Wanted("wf.train", 2, 1), "b:1")] == []
    assert [*_of_image(wanted, "b:1")] == ["its image is left out for b:1"]
    (note,) = _of_image(wanted, None)
    assert "this Python's packages" in note


@pytest.mark.parametrize(
    ("image", "name"),
    [("a:1", "a:1"), ("{{.image.default.fqn}}:1", ""), (None, ""), (object(), "")],
)
def test_an_image_that_would_have_to_be_built_is_none(image: object, name: str) -> None:
    assert named_image(SimpleNamespace(container_image=image)) == name


@pytest.mark.parametrize("words", ["--help", "--help-all"])
def test_each_option_is_once_in_its_help(words: str) -> None:
    with click.Context(command.run, info_name="run").scope() as context:
        if words == "--help-all":
            context.meta[help_all._ALL] = True
        text = command.run.get_help(context)
    flags = re.findall(r"^  (-[^ ]+(?:, -[^ ]+)*)", text, re.MULTILINE)
    assert len(flags) == len(set(flags))
    assert ("--k8s-label" in text) == (words == "--help-all")


def test_no_option_has_two_meanings() -> None:
    flags = [flag for each in command.run.params for flag in each.opts]
    names = [str(each.name) for each in command.run.params if isinstance(each, click.Option)]
    assert len(flags) == len(set(flags))
    assert len(names) == len(set(names))


def test_the_folder_that_hosts_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other / "package"):
        folder.mkdir(parents=True)
        (folder / "wf.py").touch()
    (other / "package" / "__init__.py").touch()
    monkeypatch.chdir(here)
    root = command._project_root(other / "package" / "wf.py")
    assert root == other

    def found(script: Path, **given: str) -> Path:
        return command._workspace(script, command._project_root(script), None, given)

    assert found(here / "wf.py", on="a,b") == here
    assert found(other / "package" / "wf.py") == here  # ranks see this machine's files
    for place in ({"on": "a,b"}, {"image": "img:1"}, {"machines": "small:2"}):
        with pytest.raises(UsageError, match="is not in"):
            found(other / "package" / "wf.py", **place)
    (here / "shanty.toml").write_text('[run]\nimage = "img:1"\n')
    with pytest.raises(UsageError, match="is not in"):
        found(other / "package" / "wf.py")
    (other / "package" / "__init__.py").unlink()
    assert found(other / "package" / "wf.py", on="a,b") == other / "package"


def test_what_is_no_file() -> None:
    with pytest.raises(NotFoundError, match=r"file 'wf\.py' not found"):
        command._script("wf.py")
    with pytest.raises(UsageError, match=r"http://a/wf\.txt is not a script"):
        command._script("http://a/wf.txt")
    with pytest.raises(UsageError, match="on a Flyte deployment"):
        command._script("remote-workflow")
