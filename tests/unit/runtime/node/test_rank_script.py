"""The script through which the ranks of a host start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from plans import node
from shanty.runtime.node.rank_script import rank_script
from shanty.runtime.plan import Environment


def test_the_script_that_ranks_start_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It undoes what a launcher brought along from the lead, and is quoted well."""
    home, work = tmp_path / "my home", tmp_path / "it's work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("OMPI_MCA_btl", "mine")
    monkeypatch.delenv("OMPI_MCA_pml", raising=False)
    settings = Environment(
        default={"OMPI_MCA_btl": "ours", "OMPI_MCA_pml": "ours", "OMPI_MCA_osc": "ours"},
        ranks={"UCX_NET_DEVICES": "ours", "FI_TCP_IFACE": "ours"},
        own={"QUOTED": "a 'b' $c", "a.b": "no name for sh"},
        first={"PATH": "/first"},
    )
    text = rank_script(node(workdir=str(work), environment=settings), {"MASTER_PORT": "1"})
    text, _, command = text.rpartition("\nexec ")
    assert command.startswith("env 'a.b=no name for sh' ")
    text += "\nenv\npwd\n"
    script = tmp_path / "rank"
    script.write_text(text)
    theirs = {"HOME": "/lead", "XDG_RUNTIME_DIR": "/run/lead", "PATH": os.environ["PATH"]}
    theirs["OMPI_MCA_osc"] = "the line's"
    done = subprocess.run(
        ["/bin/sh", str(script), "7", "-", "OMPI_MCA_osc,UCX_NET_DEVICES", "python"],
        env=theirs,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    for line in (
        f"HOME={home}",
        "QUOTED=a 'b' $c",
        "OMPI_MCA_pml=ours",
        "OMPI_MCA_osc=the line's",
        "FI_TCP_IFACE=ours",
        "MASTER_PORT=1",
        "SHANTY_WORLD=7",
    ):
        assert line in lines
    assert any(line.startswith("PATH=/first:") for line in lines)
    assert not any(line.startswith(("XDG_RUNTIME_DIR=", "SHANTY_PASS=")) for line in lines)
    assert "UCX_NET_DEVICES=ours" not in lines  # the line has said what it is to be, or not to be
    assert "OMPI_MCA_btl=ours" not in lines  # what the host's user has set wins
    assert lines[-1] == str(work)
