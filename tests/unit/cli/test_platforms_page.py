"""docs/how-to/platforms.md and the flags that the code knows."""

from __future__ import annotations

import platform_flags
from shanty.integrations.clusterone.flags import DISTRIBUTED, SINGLE
from shanty.integrations.gradient.flags import MULTINODE, SINGLENODE

# What the platforms' own programs had.
GRADIENT = """name ports workspace workspaceRef workspaceUsername workspacePassword ignoreFiles
workingDirectory artifactDirectory clusterId experimentEnv projectId modelType modelPath
isPreemptible tag tags datasetUri datasetName datasetAwsAccessKeyId datasetAwsSecretAccessKey
datasetVersionId datasetEtag datasetVolumeKind datasetVolumeSize tensorboard tensorboard_set apiKey
vpc no-vpc workspaceUrl workspaceArchive triggerEventId projectHandle projectHandler cluster"""
MULTI = """experimentType experimentTypeId workerContainer workerMachineType workerCommand
workerCount
parameterServerContainer parameterServerMachineType parameterServerCommand parameterServerCount
masterContainer masterMachineType masterCount masterCommand workerContainerUser
workerRegistryUsername workerRegistryPassword workerRegistryUrl parameterServerContainerUser
parameterServerRegistryUsername parameterServerRegistryPassword parameterServerRegistryUrl
parameterServerRegistryContainerUser masterContainerUser masterRegistryUsername
masterRegistryPassword masterRegistryUrl"""
SINGLE_NODE = """container machineType command containerUser registryUsername registryPassword
registryUrl count"""
JOB = """name commit datasets command setup-command setup_command docker-image time-limit
description gpu-count project module package-path python-version framework framework-version
package-manager requirements"""
DISTRIBUTED_JOB = "worker-type ps-type worker-replicas ps-replicas ps-docker-image"


def named(flags: object) -> set[str]:
    names = " ".join(each.names for each in flags).replace("/", " ")  # type: ignore[attr-defined]
    return {name[2:] for name in names.split()}


def test_the_page_is_what_the_code_has() -> None:
    text = platform_flags.PAGE.read_text(encoding="utf-8")
    assert platform_flags.page(text) == text, "python tests/platform_flags.py writes it anew"


def test_no_flag_of_the_platforms_is_missing() -> None:
    assert not {*GRADIENT.split(), *MULTI.split()} - named(MULTINODE)
    assert not {*GRADIENT.split(), *SINGLE_NODE.split()} - named(SINGLENODE)
    assert not {*JOB.split(), *DISTRIBUTED_JOB.split()} - named(DISTRIBUTED)
    assert not {*JOB.split(), "instance-type"} - named(SINGLE)


def test_every_flag_is_on_the_page() -> None:
    text = platform_flags.PAGE.read_text(encoding="utf-8")
    for flags in (MULTINODE, SINGLENODE, DISTRIBUTED, SINGLE):
        assert not {name for name in named(flags) if f"--{name}`" not in text}
