"""What the adapters for workflow engines share, without an engine."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import shanty
from shanty.client.runs import LogLine
from shanty.integrations.workflows import divided, on_ranks, shown
from shanty.tasks.task import Task


def train(lr: float, epochs: int = 3) -> float:
    """Train."""
    return lr * epochs


def test_whose_options_are_whose() -> None:
    def decorator(function: Any = None, *, name: str = "", retries: int = 0) -> None: ...

    given = {"ranks": 2, "name": "a", "on": "lab", "retries": 3}
    assert divided(given, decorator) == ({"name": "a", "retries": 3}, {"ranks": 2, "on": "lab"})


def test_an_engine_finds_the_function() -> None:
    calls: list[Any] = []
    made = on_ranks(train, {"ranks": 2}, lambda *args, **kwargs: calls.append((args, kwargs)))
    assert made.__name__ == "train"
    assert inspect.signature(made) == inspect.signature(train)
    assert inspect.getsource(made) == inspect.getsource(train)
    assert inspect.isfunction(made)
    made(0.1, epochs=2)
    ((task, *args), kwargs) = calls[0]
    assert (args, kwargs) == ([0.1], {"epochs": 2})
    assert isinstance(task, Task)
    assert (task.function, task.options) == (train, {"ranks": 2})


def test_a_task_of_ours_keeps_its_options() -> None:
    calls: list[Any] = []
    ours = shanty.task(ranks=2, retries=3, name="nightly")(train)
    on_ranks(ours, {"ranks": 4}, lambda task, *_: calls.append(task))(0.1)
    assert calls[0].function is train
    assert calls[0].options == {"ranks": 4, "retries": 3, "name": "nightly"}
    assert ours.options["ranks"] == 2


@pytest.mark.parametrize(
    ("rank", "text", "line"),
    [
        (1, "epoch 1", "[1] epoch 1"),
        (None, "mpirun's own", "mpirun's own"),
        (0, "\r10 %\r 20 %\r100 %", "[0] 100 %"),
    ],
)
def test_how_a_line_is_shown(rank: int | None, text: str, line: str) -> None:
    assert shown(LogLine(rank, text, "stdout", 0.0)) == line


def test_engines_are_loaded_by_those_who_ask_for_one() -> None:
    program = "import shanty, sys; shanty.task, shanty.submit; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [
        name
        for name in done.stdout.split()
        if name.startswith(("shanty.workflows", "shanty.integrations"))
    ]
