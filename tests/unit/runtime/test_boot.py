"""The names of programs on command lines, which other versions of shanty know, too."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import shanty.runtime

BOOT = Path(shanty.runtime.__file__).with_name("boot.py")
(PROGRAMS,) = (
    ast.literal_eval(node.value)
    for node in ast.parse(BOOT.read_text()).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_name_is_of_a_program(name: str) -> None:
    assert callable(importlib.import_module("shanty.runtime." + PROGRAMS[name]).main)


def test_the_names_that_other_versions_look_for() -> None:
    agents = {"agent.start", "agent.worker_agent", "agent.container_lead"}
    programs = {"agent.attempts", "agent.container_entry", "slurm.batch", "slurm.word"}
    assert agents | programs == set(PROGRAMS)
