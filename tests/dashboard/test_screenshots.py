"""Makes the pictures of the docs: only when SHANTY_SCREENSHOTS is set, since they are committed."""

from __future__ import annotations

import getpass
import json
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from browsers import NARROW, Lived, Tab
from shanty.runtime.rundir import RunDir

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
SAMPLES = 120
SIZE = {"width": 1100, "height": 700}

pytestmark = pytest.mark.skipif(
    not os.environ.get("SHANTY_SCREENSHOTS"), reason="makes pictures: SHANTY_SCREENSHOTS=1"
)


def sampled(run: RunDir) -> None:
    """What hosts had to do, where nothing samples them."""
    if run.resources.exists():
        return
    now = time.time()
    with run.resources.open("w") as file:
        for index in range(SAMPLES):
            for place, host in enumerate(("gpu1", "gpu2")):
                wave = 0.5 + 0.4 * math.sin(index / 9 + place)
                sample = {
                    "time": now - 2 * (SAMPLES - index),
                    "host": host,
                    "cpu": wave,
                    "memory": (20 + 9 * wave) * 1e9,
                    "memory_total": 64e9,
                    "receive": 4e8 * wave,
                    "send": 3.8e8 * wave,
                    "gpus": [
                        {
                            "index": 0,
                            "name": "GPU",
                            "utilization": min(1, wave + 0.1),
                            "memory": 11e9,
                            "memory_total": 16e9,
                        }
                    ],
                }
                file.write(json.dumps(sample) + "\n")


# What is this machine's own is not for a picture.
RENAME = """names => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (walk.nextNode()) {
        let text = walk.currentNode.data
        for (const [from, to] of names) text = text.replaceAll(from, to)
        if (text === names[1][0].trim()) text = names[1][1].trim()
        if (text !== walk.currentNode.data) walk.currentNode.data = text
    }
    for (const field of document.querySelectorAll('input')) {
        for (const [from, to] of names) field.value = field.value.replaceAll(from, to)
    }
}"""


def picture(tab: Tab, lived: Lived, name: str) -> None:
    host, user = platform.node(), getpass.getuser()
    folder = str(lived.shanty.folder)
    names = [[folder, "/home/ann/digits"], [f" {host} ", " gpu1 "], [user, "ann"]]
    tab.page.locator(".waiting").wait_for(state="detached")
    tab.page.mouse.move(0, 0)
    tab.page.evaluate(RENAME, names)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tab.page.screenshot(path=FOLDER / f"{name}.png", animations="disabled", caret="hide")


@pytest.mark.parametrize("look", ["light", "dark"])
def test_pages(tabs: Callable[..., Tab], lived: Lived, look: str) -> None:
    tab = tabs(lived.ui, dark=look == "dark", size=SIZE)
    sampled(RunDir(lived.shanty.home / "runs" / lived.trained))
    runs = f"run={lived.trained}&run={lived.other}"
    wanted = {
        "runs": ("/", ".row .run-name"),
        "failed": (f"/runs/{lived.failed}", ".cause-lines"),
        "resources": (f"/runs/{lived.trained}?tab=resources", ".plot canvas"),
        "compare": (f"/compare?{runs}", ".plot canvas"),
        "new": ("/new", ".command"),
    }
    if look == "dark":
        wanted = {
            "logs": (f"/runs/{lived.on}?tab=logs&ranks=0,1", ".line"),
            "metrics": (f"/runs/{lived.trained}?tab=metrics&with={lived.other}", ".plot canvas"),
        }
    for name, (path, there) in wanted.items():
        tab.open(path)
        tab.page.locator(there).first.wait_for()
        picture(tab, lived, name)


def test_a_narrow_screen(tabs: Callable[..., Tab], lived: Lived) -> None:
    tab = tabs(lived.ui, size=NARROW)
    tab.open(f"/runs/{lived.failed}")
    tab.page.locator(".cause-lines").wait_for()
    picture(tab, lived, "narrow")
