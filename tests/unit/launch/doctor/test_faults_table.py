"""The table of planted faults, and the page of the documentation that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

from faults import BARE, NOT_PLANTED, RECORD, TABLE, page

from shanty.launch.finding import CODES, Level

DOCS = Path(__file__).parents[4] / "docs" / "help"


def test_there_are_enough_faults() -> None:
    assert len(TABLE) >= 36
    names = [fault.name for fault in TABLE]
    assert len(names) == len(set(names))


def test_every_case_has_a_code_and_a_level_that_there_is() -> None:
    for fault in TABLE:
        assert fault.code in CODES, fault.name
        assert fault.level in set(Level), fault.name
        assert fault.hosts, fault.name


def test_every_code_is_planted_or_there_is_a_reason() -> None:
    planted = {fault.code for fault in TABLE}
    assert planted.isdisjoint(NOT_PLANTED)
    assert planted | set(NOT_PLANTED) == set(CODES)


def test_every_case_was_measured() -> None:
    bare, told = json.loads(BARE.read_text()), json.loads(RECORD.read_text())
    names = {fault.name for fault in TABLE}
    assert set(told) == names
    assert set(bare) == {fault.name for fault in TABLE if not fault.bare}


def test_the_page_is_the_one_that_the_tests_make() -> None:
    made = page(json.loads(BARE.read_text()), json.loads(RECORD.read_text()))
    again = "python tests/lab/faults.py > docs/help/faults.md"
    assert (DOCS / "faults.md").read_text() == made, again
