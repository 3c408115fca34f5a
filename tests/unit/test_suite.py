"""The suite's own plugin: rotation, order, and what becomes of a test that passes on a retry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rotation
import timings

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parents[1]


@given(
    st.text(),
    st.lists(st.text(), min_size=1, max_size=4, unique=True),
    st.integers(0, 100),
    st.integers(1, 6),
    st.integers(20000, 40000),
)
def test_every_variant_has_its_turn(
    name: str, there: list[str], place: int, share: int, first: int
) -> None:
    days = range(first, first + share * len(there))
    due = [day for day in days if rotation.is_due(place, share, day)]
    assert {rotation.variant(name, there, share, day) for day in due} == set(there)
    assert len(due) == len(there)  # no more of them run than before


FILE = """
import pytest

@pytest.mark.parametrize("flavour", ["openmpi5", "openmpi4", "mpich"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks(flavour, ranks):
    pass

@pytest.mark.sampled
@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_case(case):
    pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize("flavour", ["openmpi5", "mpich"])
def test_both(flavour):
    pass
"""
CONFTEST = """
from pathlib import Path
from rotation import thin

def pytest_collection_modifyitems(items):
    thin(items, Path(__file__).parent{words})
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests that uses the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("SHANTY_TEST_DAY", "20000")
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    pytester.makeini("[pytest]\nmarkers =\n    sampled: one in so many\n")
    return pytester


def test_a_selection_of_a_file(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests of a file run within days, and on each day about as many."""
    seen = selections(suite, monkeypatch, FILE)
    ranks = [{name for name in names if name.startswith("test_ranks")} for names in seen]
    assert [len(names) for names in ranks] == [2] * 6
    assert all(
        ranks[day] | ranks[day + 1] | ranks[day + 2] == set().union(*ranks) for day in (0, 3)
    )
    assert [sum("test_case" in name for name in names) for names in seen] == [1] * 6
    assert len(set().union(*seen)) == 6 + 3 + 2


PARAMETERS = """
import pytest

@pytest.mark.parametrize("flavour", ["openmpi5", "mpich"])
@pytest.mark.parametrize("case", range(5))
def test_many(case, flavour):
    pass

@pytest.mark.parametrize("case", range(2))
def test_two(case):
    pass

@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", range(4))
def test_every(case):
    pass

@pytest.mark.parametrize("case", range(4))
def test_of_one_launch(case, launches):
    pass

@pytest.fixture
def launches():
    pass
"""


def test_each_function_has_some_of_its_parameters_each_day(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = selections(suite, monkeypatch, PARAMETERS, ", parameters=3")
    for name, least, all_of_them in (("many", 1, 10), ("two", 1, 2), ("every", 4, 4)):
        found = [{one for one in names if one.startswith(f"test_{name}[")} for names in seen]
        assert min(map(len, found)) == least, name
        assert len(set().union(*found)) == all_of_them, name
    assert [sum("of_one_launch" in name for name in names) for names in seen] == [4] * 6


def selections(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, text: str, words: str = ""
) -> list[set[str]]:
    """The tests of a file that run on each of six days."""
    suite.makepyfile(test_file=text)
    suite.makeconftest(CONFTEST.format(words=words))
    monkeypatch.setattr(rotation, "LONG", False)
    seen = []
    for day in range(20000, 20006):
        monkeypatch.setenv("SHANTY_TEST_DAY", str(day))
        done = run(suite, "--collect-only", "-q")
        seen.append({line.partition("::")[2] for line in done.outlines if "::" in line})
    return seen


TIMED = """
import time, pytest

@pytest.mark.xdist_group("pair")
def test_first(): pass

def test_alone(): pass

@pytest.mark.xdist_group("pair")
def test_second(): pass

@pytest.mark.parametrize("at", ["x@y"])
def test_long(at): pass
"""


def test_the_longest_units_come_first_by_the_run_before(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_timed=TIMED)
    done = run(suite, "--junitxml", ".ci/junit.xml", "-v")
    assert order(done) == ["first", "alone", "second", "long[x@y]"]  # as in the file
    path = suite.path / ".ci/junit.xml"
    assert set(timings.recorded(suite.path)) == {f"test_timed.test_{name}" for name in order(done)}

    text = path.read_text()
    for name, seconds in {"first": 1, "second": 2.5, "alone": 2, r"long\[x@y\]": 9}.items():
        text = re.sub(rf'(name="test_{name}" time=)"[^"]*"', rf'\1"{seconds}"', text)
    path.write_text(text)
    words = ("-n", "1", "--dist", "loadgroup", "--no-loadscope-reorder", "-v")
    done = run(suite, *words, "--junitxml", "new.xml")
    assert order(done) == ["long[x@y]", "first", "second", "alone"]
    done.stdout.fnmatch_lines("*SHANTY_TEST_DAY=20000, durations of 4 tests are known")
    assert set(timings.read(suite.path / "new.xml")) == set(timings.read(path))  # without groups


def order(done: pytest.RunResult) -> list[str]:
    """The tests in the order in which they ran."""
    ran = re.findall(r"::test_(\S+) PASSED|PASSED .*::test_(\S+)", done.stdout.str())
    return [(here or there).removesuffix("@pair") for here, there in ran]


@pytest.mark.parametrize("text", ["", "<testsuites>", '<a><testcase name="x" time="1"/></a>'])
def test_damaged_times_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "junit.xml").write_text(text)
    assert timings.read(tmp_path / "junit.xml") == {}
    assert timings.read(tmp_path / "missing.xml") == {}


FLAKY = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range({failures}))
def test_once(number):
    tried = Path(f"tried-{{number}}")
    if not tried.exists():
        tried.touch()
        raise RuntimeError("the first time\\nand more")
"""


def test_a_retry_that_passes_is_listed(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_flaky=FLAKY.format(failures=1))
    done = run(suite)
    done.assert_outcomes(passed=1)
    assert done.ret == 0
    line = "test_flaky.py::test_once[[]0[]]: call: RuntimeError: the first time"
    done.stdout.fnmatch_lines(["*= flaky: failed, then passed =*", line])
    listed = (suite.path / ".ci/flaky.txt").read_text()
    assert listed.endswith(" test_flaky.py::test_once[0]: call: RuntimeError: the first time\n")


def test_a_retry_that_fails_is_a_failure(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_fails="def test_always():\n    assert False\n")
    done = run(suite)
    assert done.ret == 1
    done.assert_outcomes(failed=1)
    done.stdout.no_fnmatch_line("*flaky*")
    assert not (suite.path / ".ci/flaky.txt").exists()


def test_a_broken_build_has_no_more_than_eight_retries(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_flaky=FLAKY.format(failures=10))
    done = run(suite)
    assert done.ret == 1
    done.assert_outcomes(passed=8, failed=2)
    assert len((suite.path / ".ci/flaky.txt").read_text().splitlines()) == 8


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A run with the plugin, and with retries as in `./dev test`."""
    if "-n" in words:
        return suite.runpytest_subprocess("-p", "suite_plugin", *words)
    retries = ["--reruns", "1", "--max-suite-reruns", "8"]
    return suite.runpytest_inprocess("-p", "suite_plugin", "-p", "no:xdist", *retries, *words)
