"""Paths that users type."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shanty.launch.user_path import user_path


def test_a_tilde_is_the_home() -> None:
    assert user_path("~/x") == Path.home() / "x"
    assert user_path("a/~b") == Path("a/~b")


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_a_user_whom_nobody_knows_is_no_traceback(name: str) -> None:
    path = f"~{name}-whom-nobody-knows/x.sif"
    assert user_path(path) == Path(path)
