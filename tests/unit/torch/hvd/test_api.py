"""Every public name of horovod.torch is there, with the same arguments, and the page says so."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import shanty.torch as hvd
from horovod_api import PAGES, TORCH, of_torch, text
from horovod_names import Name, arguments, read, sentence

NAMES = read(TORCH).names


def is_method(name: Name) -> bool:
    return name.section == "optimizer" or name.path.count(".") > name.path.startswith("elastic")


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_it_is_there_with_its_arguments(name: Name) -> None:
    for thing in of_torch(name):
        ours = arguments(thing, name.theirs)
        if (
            is_method(name) or inspect.isclass(thing)
        ) and ours != name.theirs:  # more that may be left out does no harm
            more = ours.removeprefix(name.theirs.removesuffix(")")).removesuffix(")").split(", ")
            assert all("=" in each for each in more if each), ours
        else:
            assert ours == name.theirs
        if inspect.isroutine(thing) or inspect.isclass(thing):
            assert sentence(thing), f"{name.path} does not say what it is"


def test_none_is_left_out_of_the_facts() -> None:
    """The 67 names that horovod/torch/__init__.py of 0.28.1 imports, and what belongs to them."""
    top = {name.path.partition(".")[0] for name in NAMES if name.section != "optimizer"}
    assert len(top - {"is_homogeneous"}) == 67
    assert set(hvd.__all__) >= top
    assert len(NAMES) > 90


def test_it_is_a_module_of_names_only() -> None:
    assert all(hasattr(hvd, each) for each in hvd.__all__)
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


def test_the_backend_alone_loads_none_of_it() -> None:
    code = "import sys, shanty.torch; print([m for m in sys.modules if '.hvd' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_page_is_up_to_date() -> None:
    assert PAGES[TORCH].read_text() == text(TORCH), "python tests/horovod_api.py writes it anew"
