"""Makes failed.svg, the picture in the README, of a terminal in which shanty runs.

    python docs/pictures/record.py        # in an environment with pip install '.[dev]'

What the picture shows was printed by the commands in it; only the home's path, the host's name and
the run's id are replaced. The script is that of the guide.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich import terminal_theme
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 84
COMMANDS = ("shanty run -n 2 train.py --data shards", "echo $?")


def recorded(folder: Path) -> str:
    """Return what a terminal shows of the commands, with its colours."""
    home = folder / "home"
    environ = {**os.environ, "SHANTY_HOME": str(home), "TERM": "xterm-256color"}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ["COLUMNS"] = str(COLUMNS)
    shown = "printf '\\033[1m$ %s\\033[0m\\n'"
    line = "; ".join(f"code=$?; {shown} '{each}'; (exit $code); {each}" for each in COMMANDS)
    done = subprocess.run(
        ["script", "-qec", f"stty cols {COLUMNS}; {line}", "/dev/null"],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    text = re.sub(r"\x1b\[\?\d+[hl]|\x1b\[K", "", done.stdout.replace("\r\n", "\n"))
    plain = re.compile(r"(\x1b\[[\d;]*m)*(\d\d:\d\d · .*)?(\x1b\[[\d;]*m)*")  # it was drawn over
    text = "\n".join(line for line in text.splitlines() if not plain.fullmatch(line))
    text = text.replace(str(home), "~/.shanty").replace(str(folder) + "/", "")
    text = re.sub(r"\d{8}-\d{6}-[a-z0-9]{4}", "20261128-101500-k3vd", text)
    return re.sub(r"( rank 1 on )\S+", r"\1desk", text)


def main() -> None:
    """Record, and write the picture."""
    guide = (HERE.parent / "tutorials" / "guide.md").read_text(encoding="utf-8")
    found = re.search(r"Save this as `train.py`:\n\n```python\n(.*?)^```", guide, re.S | re.M)
    assert found is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(found[1])
        (folder / "shards").mkdir()
        (folder / "shards" / "0.csv").write_text("0.5,2.5\n")
        text = recorded(folder)
    assert text.rstrip().endswith("1"), text
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.from_ansi(text.rstrip()))
    svg = console.export_svg(title="shanty", theme=terminal_theme.MONOKAI, unique_id="failed")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # they are loaded from elsewhere
    (HERE / "failed.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
