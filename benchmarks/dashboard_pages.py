"""How long a browser takes to show 10,000 runs, and to search them.

    python benchmarks/dashboard_pages.py [--runs 10000] [--repeats 20] [--out FILE]

Needs Playwright and Chromium. Each page is a new tab with nothing in its cache. Printed are, in
milliseconds, the medians and the 95th percentiles of: the first paint; the first row of a run; a
search, from the letter that is typed until the rows that it finds are drawn.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import figures
from playwright.sync_api import Browser, sync_playwright

from dashboard import make_runs, served

WORDS = ("digits", "needle", "mnist", "higgs 0.5")
SHOWN = """() => new Promise(resolve => {
    const look = () => {
        if (!document.querySelector('.run-name')) return requestAnimationFrame(look)
        requestAnimationFrame(() => resolve([
            performance.getEntriesByName('first-contentful-paint')[0].startTime,
            performance.now(),
        ]))
    }
    look()
})"""
SEARCHED = """word => new Promise(resolve => {
    const field = document.getElementById('search')
    const total = document.querySelector('.total')
    const before = total.textContent
    const began = performance.now()
    const look = () => {
        if (total.textContent === before) return requestAnimationFrame(look)
        requestAnimationFrame(() => resolve(performance.now() - began))
    }
    field.value = word
    field.dispatchEvent(new Event('input', {bubbles: true}))
    look()
})"""


def measure(
    browser: Browser, base: str, token: str, runs: int, repeats: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"first paint": [], "first row": [], "search": []}
    known = {"Authorization": f"Bearer {token}"}
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        page.goto(f"{base}/#token={token}")
        while page.request.get(f"{base}/api/v1/runs?limit=0", headers=known).json()["total"] < runs:
            time.sleep(0.1)
        kept = context.storage_state()
    for _ in range(repeats):
        with browser.new_context(
            viewport={"width": 1280, "height": 800}, storage_state=kept
        ) as context:
            page = context.new_page()
            page.goto(base)
            paint, row = page.evaluate(SHOWN)
            times["first paint"].append(paint)
            times["first row"].append(row)
            times["search"] += [page.evaluate(SEARCHED, word) for word in WORDS]
    return times


def main() -> None:
    parser = figures.options(__doc__, 20)
    parser.add_argument("--runs", type=int, default=10_000)
    args = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    launch: dict[str, Any] = {"executable_path": program, "args": ["--no-sandbox"]}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        make_runs(Path(folder), args.runs)
        with served(Path(folder)) as (url, client, _pid):
            browser = playwright.chromium.launch(**launch)
            address = url.removesuffix("/api/v1")
            token = client.headers["Authorization"].partition(" ")[2]
            times = measure(browser, address, token, args.runs, args.repeats)
            browser.close()
    for title, found in times.items():
        print(f"{title:<12} {figures.milliseconds(found)}")
    figures.keep(args.out, {"arguments": str(args), "ms": times})


if __name__ == "__main__":
    main()
