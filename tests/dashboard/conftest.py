"""A browser, homes that are empty, have real runs, or very many, and a server for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browsers import MANY, Lived, Tab, Ui, chromium, chromium_program, run_until
from many_runs import make_many
from rotation import thin
from runs import LONG, Shanty

_ALWAYS = ("test_smoke.py", "test_other_sites.py", "test_proxies.py")
SCRIPTS = Path(__file__).parent / "scripts"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave those that are quick, unless all is asked for; one worker has them all."""
    thin(items, Path(__file__).parent)
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("dashboard"))
            if not LONG and item.path.name not in _ALWAYS:
                item.add_marker(pytest.mark.skip(reason="takes long: SHANTY_TEST_LONG=1"))


@pytest.fixture(scope="session")
def program() -> str:
    return chromium_program()


@pytest.fixture(scope="module")  # no test elsewhere is to come to a running event loop
def browser(program: str) -> Iterator[object]:
    with chromium(program) as found:
        yield found


@pytest.fixture
def tabs(browser: object) -> Iterator[Callable[..., Tab]]:
    """Makes signed-in pages of a server."""
    made: list[Tab] = []

    def make(ui: Ui, *, sign_in: bool = True, **how: object) -> Tab:
        made.append(Tab(browser, ui, **how))  # type: ignore[arg-type]
        return made[-1].sign_in() if sign_in else made[-1]

    yield make
    for each in made:
        each.close()


def _shanty(folder: Path) -> Shanty:
    (folder / "home").mkdir(parents=True)
    (folder / "work").mkdir()
    for script in SCRIPTS.glob("*.py"):
        (folder / "work" / script.name).write_text(script.read_text())
    return Shanty(folder / "home", folder / "work")


@pytest.fixture(scope="session")
def empty(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """The server of a home in which nothing ever ran."""
    ui = Ui(_shanty(tmp_path_factory.mktemp("empty")))
    yield ui
    ui.stop()


@pytest.fixture(scope="session")
def lived(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """The server of a home with real runs: two trained, one failed, one stalled, one is on."""
    shanty = _shanty(tmp_path_factory.mktemp("lived"))
    two = "-n 2 --oversubscribe"
    lines = {
        "-n 1 --name slow-rate --tag sweep train.py --lr 0.1": "succeeded",
        "-n 1 --name fast-rate --tag sweep train.py --lr 0.5": "succeeded",
        "-n 3 --oversubscribe --name broken fails.py": "failed",
        f"{two} --stall-after 3s --name hangs stalls.py": "running",
        f"{two} --name live --tag now goes_on.py": "running",
    }
    try:
        runs = [run_until(shanty, state, *line.split()) for line, state in lines.items()]
        ui = Ui(shanty)
        yield Lived(shanty, ui, *runs)
        ui.stop()
    finally:
        shanty("stop", "--all")
        shanty.sweep()


@pytest.fixture(scope="session")
def many(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """The server of a home with very many runs."""
    shanty = _shanty(tmp_path_factory.mktemp("many"))
    make_many(shanty.home, MANY)
    assert shanty("ps", timeout=150).returncode == 0  # which puts them into the index
    ui = Ui(shanty)
    yield ui
    ui.stop()
