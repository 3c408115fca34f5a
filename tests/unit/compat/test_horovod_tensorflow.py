"""Every public name of horovod.tensorflow and horovod.keras is there, or the page says why not.

One Python with TensorFlow is asked for all of it; see `horovod_tensorflow`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod_api import PAGES, SECTIONS, found, text
from horovod_names import Facts, Found, Name, mistakes, read
from horovod_tensorflow import KERAS, TENSORFLOW

FILES = [TENSORFLOW, KERAS]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_are_there_with_their_arguments(path: Path) -> None:
    assert mistakes(read(path), found(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_page_is_up_to_date(path: Path) -> None:
    assert PAGES[path].read_text() == text(path), "python tests/horovod_api.py writes it anew"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_page_has_all_sections(path: Path) -> None:
    assert {each.section for each in read(path).names} == {each.key for each in SECTIONS[path]}


def test_none_is_left_out_of_the_facts() -> None:
    """The 67 names that horovod/tensorflow/__init__.py of 0.28.1 has without an underscore."""
    own = {each.key for each in SECTIONS[TENSORFLOW] if each.ours == "shanty.tensorflow"}
    own = own - {f"tensorflow.{each}" for each in ("optimizer", "adasum_optimizer", "tape")}
    own |= {"tensorflow.helpers"}
    top = {each.path.partition(".")[0] for each in read(TENSORFLOW).names if each.section in own}
    assert len(top) == 67
    assert all(len(read(path).names) > 120 for path in FILES)


def test_what_counts_as_a_mistake() -> None:
    names = [Name("a", each, "(x)") for each in ("here", "other", "gone", "late", "silent", "told")]
    facts = Facts(names, {"a.gone": "No.", "a.late": "No.", "b": "No."}, {"a.told": "More."})
    there = {
        "a.here": Found("(x)", "Is."),
        "a.other": Found("(y)", "Is."),
        "a.late": Found("(x)", "Is."),
        "a.silent": Found("(x)", ""),
        "a.told": Found("(x, y=1)", "Is."),
    }
    assert mistakes(facts, there) == [
        "a.other(y) has not Horovod's arguments (x)",
        "a.late is here",
        "a.silent does not say what it is",
        "b is no name",
    ]
    assert mistakes(Facts(names[:1]), {}) == ["a.here is not here"]
