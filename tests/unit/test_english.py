"""The words of errors, help, docs and comments: those that a native engineer would not write."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What is not written, and what is written instead.
BANNED = {
    r"\b(is|are|was|were|be|been) no (?!longer|one\b|more|less|other|need|different|better|way)": (
        "X is not a Y; invalid Y: X; X not found; X has no Y"
    ),
    r"\bones? that\b": "the noun itself: a flag that",
    r"\b(whoever|odd one|what is said)\b": "the caller, the rank that is missing, the message",
    r"\b(anew|amid|in vain|for ever|at hand)\b": (
        "again, during, without effect, indefinitely, available"
    ),
    r"\bas of old\b": "as before",
    r"\b(mend(s|ed|ing)?|cures?)\b": "fix",
    r"\b(told|hears?|heard)\b": "reported, receives, is sent",
    r"\b(judge[sd]?|believe[sd]?)\b": "decides, assumes",
    r"\bwithout a word\b": "silently",
    r"\bfor want of\b": "without",
}
# Names of files that keep their old words, in each package.
ALLOWED = {"runtime": 2}  # rundir.py: the file `heard` of a run


# Pages that are made of docstrings, which are counted in their packages.
GENERATED = "horovod-api*.md"
# In Markdown: examples, output and names, which are counted where the program has them.
_QUOTED = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def written(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of prose in a file; of Python, those of its comments and strings."""
    text = path.read_text(encoding="utf-8")
    if path.match(GENERATED):
        return
    if path.suffix == ".md":
        text = _QUOTED.sub(lambda quoted: "\n" * quoted[0].count("\n"), text)
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), token.start[0])


def files() -> Iterator[tuple[str, Path]]:
    """Each file with the package that answers for it."""
    source = ROOT / "src" / "shanty"
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts[:-1]
        depth = 2 if parts[:1] in (("runtime",), ("launch",)) else 1
        yield "/".join(parts[:depth]) or "shanty", path
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]:
        yield "docs", path
    for path in sorted((ROOT / "frontend" / "src").rglob("*.ts*")):
        yield "frontend", path


def test_the_words_of_messages_and_docs() -> None:
    patterns = {re.compile(each): use for each, use in BANNED.items()}
    found: Counter[str] = Counter()
    lines = []
    for package, path in files():
        for number, line in written(path):
            for pattern, use in patterns.items():
                for match in pattern.finditer(line):
                    found[package] += 1
                    lines.append((package, f"{path}:{number}: {match[0]!r}: write {use}"))
    wrong = {
        each: found[each]
        for each in sorted({*found, *ALLOWED})
        if found[each] != ALLOWED.get(each, 0)
    }
    listed = [text for package, text in lines if package in wrong]
    assert not wrong, "\n".join([*listed, f"in each package now: {wrong}"])


_COUNTS = re.compile(r" (cores|slots)\b")


def test_numbers_of_cores_and_slots_have_a_singular() -> None:
    """One of either is common: "1 core" comes from `counted`."""
    wrong = [
        f"{path}:{before.lineno}: write counted({ast.unparse(before.value)}, …)"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr)
        for before, after in itertools.pairwise(text.values)
        if isinstance(before, ast.FormattedValue)
        and isinstance(after, ast.Constant)
        and _COUNTS.match(str(after.value))
    ]
    assert not wrong, "\n".join(wrong)
