"""Builds the documentation as a site, with warnings as errors: `./dev docs [FOLDER]`.

The pages are those of this folder and of the repository's root, which are the same on a forge. The
table of contents is made of the tables in README.md of this folder. Pages that are made here: the
command line, of `--help-all`; the codes of findings; the Python API, of its docstrings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from shanty.launch.finding import CODES
from shanty.program import app

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
CONF = """
project = "shanty"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
html_theme = "furo"
html_title = "shanty"
html_show_sphinx = False
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
highlight_language = "text"
"""
API = """# Python API

[The page about Python](sdk.md) explains these with examples.

```{eval-rst}
.. automodule:: shanty
   :members:
   :imported-members:
   :undoc-members:
```
"""


def copied(source: Path) -> None:
    """Copy all pages, in the places that they have in the repository."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns("*.py"))
    for name in PAGES:
        shutil.copy(ROOT / name, source / name)
    (source / "conf.py").write_text(CONF)


def verbs(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield each command below this one, and its help with all options."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        own = click.Context(found, info_name=name, parent=context, max_content_width=100)
        words = ["--help-all" if "--help-all" in _options(found, own) else "--help"]
        shown = subprocess.run(
            [sys.executable, "-m", "shanty", *own.command_path.split()[1:], *words],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        yield own.command_path, shown
        yield from verbs(found, own)


def _options(command: click.Command, context: click.Context) -> set[str]:
    return {name for param in command.get_params(context) for name in param.opts}


def made(source: Path) -> None:
    """Write the pages that are made of the program."""
    context = click.Context(app, info_name="shanty", **app.context_settings)
    parts = ["# Command line\n", "What `--help-all` prints, for each command.\n"]
    for path, text in verbs(app, context):
        parts.append(f"## {path}\n\n```text\n{text.rstrip()}\n```\n")
    folder = source / "docs" / "reference"
    (folder / "command-line.md").write_text("\n".join(parts), encoding="utf-8")
    rows = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in CODES.items())
    head = "# Codes of findings\n\nThose of `shanty doctor`, and of a run that does not start.\n\n"
    (folder / "codes.md").write_text(f"{head}| Code | Meaning |\n|---|---|\n{rows}\n")
    (folder / "python.md").write_text(API)


def contents(source: Path) -> None:
    """Give the first page a table of contents: the links of the tables in docs/README.md."""
    text = (source / "docs" / "README.md").read_text(encoding="utf-8")
    trees = []
    for table in text.split("\n\n"):
        title = re.match(r"\| ([^|]+) \| \|\n", table)
        pages = [f"docs/{page}" for page in re.findall(r"\]\(([^)]+)\.md\)", table)]
        if title is None:
            continue
        if title[1] == "Reference":
            made_here = ("command-line", "codes", "python")
            pages += [f"docs/reference/{page}" for page in made_here]
        pages = [page.replace("docs/../", "") for page in pages]
        listed = "\n".join(pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {title[1]}\n\n{listed}\n```\n")
    first = "```{toctree}\n:hidden:\n\ndocs/README\nSECURITY\nCODE_OF_CONDUCT\n```\n"
    with (source / "README.md").open("a", encoding="utf-8") as page:
        page.write("\n" + "\n".join([first, *trees]))


def main() -> None:
    """Build into the folder that is given, else into .dev/docs."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".dev" / "docs"
    source = out / "source"
    copied(source)
    made(source)
    contents(source)
    words = ["-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words, source, out / "html"])
    if done.returncode:
        sys.exit(done.returncode)
    print(out / "html" / "README.html")


if __name__ == "__main__":
    main()
