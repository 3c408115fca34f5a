"""Targets of other packages that do not work here."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import make_run
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import write_json
from shanty.runtime.spec import State


@pytest.mark.parametrize("module", ["nowhere", "broken"])
def test_a_package_whose_target_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    info = tmp_path / "package" / "cloud-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloud\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[shanty.targets]\ncloud = cloud_{module}:make\n")
    (info.parent / "cloud_broken.py").write_text("def make(here):\n    raise OSError('no key')\n")
    monkeypatch.syspath_prepend(str(info.parent))
    targets = Targets(Surroundings(tmp_path, {}, Settings()))
    with pytest.raises(NotFoundError, match="target cloud of the package cloud does not work"):
        targets.named("cloud")
    run = make_run(tmp_path, 1, State.RUNNING)
    write_json(run.site, {"target": "cloud", "name": "7"})
    status = targets.describe([run])[run]
    assert status.state is State.LOST
    assert status.failure is not None and status.failure.why
