"""What a container gets of the host where it starts, which is another one than prepared it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shanty.runtime import platform
from shanty.runtime.containers import container
from shanty.runtime.containers.container import (
    ANY_GPUS,
    ARTIFACTS,
    Container,
    Mount,
    with_this_host,
)
from shanty.runtime.containers.engines import wrapped

# As a login node prepares it, which has neither GPUs nor another network, and little memory.
PREPARED = Container(
    "docker", "/usr/bin/docker", "sha256:1", "shanty-x.1", "/home/ann/work/x.1", gpus=ANY_GPUS
)
GPU = {"name": "H100", "uuid": "GPU-1"}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes this host one with these GPUs, and with InfiniBand or not."""

    def become(gpus: list[dict[str, str]], *, rdma: bool) -> None:
        monkeypatch.setattr(container, "gpus", lambda: gpus)
        monkeypatch.setattr(platform, "usable_memory", lambda: 8 << 30)
        monkeypatch.setattr(container, "RDMA", str(tmp_path if rdma else tmp_path / "none"))

    return become


def test_a_node_has_more_than_the_login_node(host: Any) -> None:
    host([GPU], rdma=True)
    found = with_this_host(PREPARED)
    assert (found.gpus, found.rdma, found.shared_memory) == ("all", True, 4 << 30)
    words = wrapped(found, ["true"])
    assert {"--gpus", "/dev/infiniband", str(4 << 30)} <= set(words)


def test_a_node_has_less_than_the_login_node(host: Any) -> None:
    host([], rdma=False)
    found = with_this_host(PREPARED._replace(rdma=True, shared_memory=1 << 40))
    assert (found.gpus, found.rdma, found.shared_memory) == ("", False, 4 << 30)


@pytest.mark.parametrize("asked", ["", "0,1", "all"])
def test_gpus_that_were_asked_for_are_not_looked_for(host: Any, asked: str) -> None:
    host([], rdma=False)
    assert with_this_host(PREPARED._replace(gpus=asked)).gpus == asked


def test_an_image_file_is_unpacked_where_it_cannot_be_mounted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    apptainer = PREPARED._replace(engine="apptainer", gpus="")
    fuse = tmp_path / "fuse"
    monkeypatch.setattr(container, "_FUSE", str(fuse))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert with_this_host(apptainer).unpack
    assert not with_this_host(PREPARED).unpack
    fuse.touch()
    assert not with_this_host(apptainer._replace(unpack=True)).unpack


def test_what_a_scheduler_set_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("SECRET", "no")
    names = with_this_host(PREPARED._replace(variables=("http_proxy",))).variables
    assert {"http_proxy", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"} <= set(names)
    assert "SECRET" not in names


def test_the_folder_of_artifacts_is_that_of_the_run_on_this_host(host: Any, tmp_path: Path) -> None:
    host([], rdma=False)
    run = tmp_path / "work" / "x.1"
    mounts = (Mount("/data", "/data", "ro"), Mount(ARTIFACTS, "/artifacts"))
    found = with_this_host(PREPARED._replace(run=str(run), mounts=mounts))
    assert found.mounts == (mounts[0], Mount(f"{run}/artifacts", "/artifacts"))
    assert (run / "artifacts").is_dir()
