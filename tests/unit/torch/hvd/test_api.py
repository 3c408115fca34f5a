"""Every public name of horovod.torch is there, with the same arguments, and the page says so."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import shanty.torch as hvd
from horovod_api import FACTS, PAGE, Name, arguments, names, page, sentence


@pytest.mark.parametrize("name", names(), ids=lambda name: name.path)
def test_it_is_there_with_its_arguments(name: Name) -> None:
    for thing in name.ours():
        ours = arguments(thing, name)
        if (
            name.is_method or inspect.isclass(thing)
        ) and ours != name.theirs:  # more that may be left out does no harm
            more = ours.removeprefix(name.theirs.removesuffix(")")).removesuffix(")").split(", ")
            assert all("=" in each for each in more if each), ours
        else:
            assert ours == name.theirs
        if inspect.isroutine(thing) or inspect.isclass(thing):
            assert sentence(thing), f"{name.path} does not say what it is"


def test_none_is_left_out_of_the_facts() -> None:
    """The 67 names that horovod/torch/__init__.py of 0.28.1 imports, and what belongs to them."""
    top = {name.path.partition(".")[0] for name in names() if name.section != "optimizer"}
    assert len(top - {"is_homogeneous"}) == 67
    assert set(hvd.__all__) >= top
    assert len(FACTS.read_text().splitlines()) > 100


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
    assert PAGE.read_text() == page(), "python tests/horovod_api.py writes it anew"
