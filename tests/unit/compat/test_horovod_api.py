"""Every public name of horovod.torch, .tensorflow and .keras is here, or its page says why not.

One Python with TensorFlow is asked for all of its names; see `horovod_tensorflow`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import shanty.torch as hvd
from horovod_api import PAGES, SECTIONS, TORCH, found, of_torch, text
from horovod_names import Facts, Found, Name, arguments, mistakes, read
from horovod_tensorflow import KERAS, TENSORFLOW

of_each_file = pytest.mark.parametrize(
    "path", [TORCH, TENSORFLOW, KERAS], ids=lambda each: each.stem
)


@of_each_file
def test_they_are_there_with_their_arguments(path: Path) -> None:
    assert mistakes(read(path), found(path)) == []


@of_each_file
def test_the_page_is_up_to_date(path: Path) -> None:
    assert PAGES[path].read_text() == text(path), "python tests/horovod_api.py writes it again"


@of_each_file
def test_the_page_has_all_sections(path: Path) -> None:
    assert {each.section for each in read(path).names} == {each.key for each in SECTIONS[path]}


def test_optimizers_of_both_kinds_are_alike() -> None:
    for name in read(TORCH).of("optimizer"):
        assert len({arguments(each, name.theirs) for each in of_torch(name)}) == 1, name


def test_none_is_left_out_of_the_facts() -> None:
    """The 67 names that horovod/torch/__init__.py of 0.28.1 imports, as many as
    horovod/tensorflow/__init__.py has without an underscore; and what belongs to them.
    """
    names = [each for each in read(TORCH).names if each.section != "optimizer"]
    top = {each.path.partition(".")[0] for each in names}
    assert len(top - {"is_homogeneous"}) == 67
    assert set(hvd.__all__) >= top
    own = {each.key for each in SECTIONS[TENSORFLOW] if each.ours == "shanty.tensorflow"}
    own = own - {f"tensorflow.{each}" for each in ("optimizer", "adasum_optimizer", "tape")}
    own |= {"tensorflow.helpers"}
    top = {each.path.partition(".")[0] for each in read(TENSORFLOW).names if each.section in own}
    assert len(top) == 67
    least = {TORCH: 90, TENSORFLOW: 120, KERAS: 120}
    assert all(len(read(path).names) > number for path, number in least.items())


def test_they_are_numbered_as_in_horovod() -> None:
    assert all(hasattr(hvd, each) for each in hvd.__all__)
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


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
