"""Which known name is suggested for an unknown one, and that one module decides it."""

from __future__ import annotations

from pathlib import Path

from shanty.runtime.suggestions import closest, nearest

PACKAGE = Path(__file__).parents[3] / "src" / "shanty"


def test_closest() -> None:
    assert closest("trian", ["train", "test"]) == "train"
    assert closest("trian", iter(["train"]), 0.9) == ""
    assert closest("TRAIN", ["train"]) == closest("x", []) == ""


def test_nearest() -> None:
    assert nearest("trian", ["train", "test"]) == "did you mean train?"
    assert nearest("TRAIN", ["Train"]) == "did you mean Train?"
    assert nearest("-n", ["-N", "-n"]) == "did you mean -n?"
    assert nearest("x", ["train"]) == ""
    assert nearest("x", ["train"], "see --help") == "see --help"
    assert nearest("trian", ["train"], "see --help", 0.9) == "see --help"


def test_only_this_module_uses_difflib() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "difflib" in path.read_text(encoding="utf-8")
    }
    assert users == {"runtime/suggestions.py"}
