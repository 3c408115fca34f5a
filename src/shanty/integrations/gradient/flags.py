"""The flags of Gradient's `shanty experiments`, and what each does here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from shanty.client.context import note
from shanty.client.terminal.options import completed
from shanty.integrations.platforms.flags import Flag, does, ignored, refused
from shanty.integrations.platforms.options_file import options_file
from shanty.runtime.errors import UsageError

ARTIFACTS = "/artifacts"  # where Gradient's scripts save
_WHO, _CODE, _DATA = "Name", "Code and environment", "Data"
_MACHINES, _CONTAINERS = "Machines and command", "Containers"
_NO_ACCOUNT = "shanty has no accounts, project servers or clusters"
_NO_SERVERS = "an MPI experiment has no parameter servers"
_NO_S3 = "shanty does not read S3"
_USERS = "what runs in a container is you, and its files belong to you"
_COPY = "download it (aws s3 sync), and name the folder: --datasetUri FOLDER --datasetName NAME"


class Variables(click.ParamType[dict[str, str]]):
    """Environment variables as a JSON object; other values than texts are written as JSON."""

    name = "JSON"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, str]:
        """Read the object; click's usage error for anything else."""
        read = value
        if isinstance(value, str):
            try:
                read = json.loads(value)
            except (ValueError, RecursionError) as error:
                self.fail(f"invalid JSON: {value!r}: {error}", param, ctx)
        if not isinstance(read, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return {
            str(key): each if isinstance(each, str) else json.dumps(each)
            for key, each in read.items()
        }


_machine_type = {"metavar": "TYPE", "shell_complete": completed("machine_types")}


def registry_flag(prefix: str, word: str) -> str:
    """Return the flag for the registry of the `master`, the `worker` or a single machine."""
    return f"--{prefix}Registry{word}" if prefix else f"--registry{word}"


def _registry(prefix: str, param: str, whose: str) -> tuple[Flag, ...]:
    return (
        does(
            registry_flag(prefix, "Username"), f"{param}registry_username",
            f"Login for the registry of {whose}.", _CONTAINERS, metavar="USER",
        ),
        does(
            registry_flag(prefix, "Password"), f"{param}registry_password",
            "Its password, or env:NAME for the variable that has it.",
            _CONTAINERS, metavar="PASSWORD",
        ),
        does(
            registry_flag(prefix, "Url"), f"{param}registry_url",
            "The registry, for an image without one in its name.", _CONTAINERS, metavar="URL",
        ),
    )  # fmt: skip


_COMMON = (
    does("--name", "name", "Name of the run; other characters than its own become dashes.", _WHO,
         metavar="NAME"),
    does("--tag", "tags", "A tag (repeatable).", _WHO, multiple=True, metavar="TAG",
         shell_complete=completed("tags")),
    does("--tags", "tags_comma", "Tags with commas between them.", _WHO, metavar="TAG,TAG"),
    does("--projectId --projectHandle --projectHandler", "project_id",
         "Kept as the tag project:ID, by which `experiments list` finds it.", _WHO, metavar="ID"),
    does("--workspace --workspaceUrl --workspaceArchive", "workspace",
         "The code: a folder, a git URL, an archive, or none: an empty folder [none].", _CODE,
         metavar="URL|FOLDER|ARCHIVE", shell_complete=completed("folders")),
    does("--workspaceRef", "workspace_ref", "Branch, tag or commit of a git URL.", _CODE,
         metavar="REF"),
    does("--workspaceUsername", "workspace_username", "Login for a workspace by http.", _CODE,
         metavar="USER"),
    does("--workspacePassword", "workspace_password",
         "Its password, or env:NAME for the variable that has it.", _CODE, metavar="PASSWORD"),
    does("--workingDirectory", "working_directory",
         "Where the command runs: a folder of the workspace, or an absolute path there [.].",
         _CODE, metavar="FOLDER"),
    does("--artifactDirectory", "artifact_directory",
         f"In a container, where the artifacts of the run are mounted [{ARTIFACTS}]; outside of "
         "one it is refused: save in $SHANTY_RUN_DIR/artifacts.", _CODE, metavar="FOLDER"),
    does("--experimentEnv", "experiment_env", "Environment variables as a JSON object.", _CODE,
         type=Variables(), metavar="JSON"),
    does("--datasetUri", "dataset_uri",
         "A folder of each machine; in a container it is at /data/NAME. S3 is refused.", _DATA,
         multiple=True, metavar="FOLDER"),
    does("--datasetName", "dataset_name", "The name of that dataset.", _DATA, multiple=True,
         metavar="NAME"),
    refused("--datasetAwsAccessKeyId", "dataset_access_key_id", _NO_S3, _COPY, multiple=True),
    refused("--datasetAwsSecretAccessKey", "dataset_secret_access_key", _NO_S3, _COPY,
            multiple=True),
    refused("--datasetVersionId", "dataset_version_id", _NO_S3, _COPY, multiple=True),
    refused("--datasetEtag", "dataset_etag", _NO_S3, _COPY, multiple=True),
    ignored("--datasetVolumeKind", "dataset_volume_kind", "a dataset is a folder, not a volume",
            multiple=True),
    ignored("--datasetVolumeSize", "dataset_volume_size", "a dataset is a folder, not a volume",
            multiple=True),
    ignored("--apiKey", "api_key", _NO_ACCOUNT),
    ignored("--clusterId --cluster", "cluster_id", _NO_ACCOUNT),
    ignored("--vpc/--no-vpc", "vpc", _NO_ACCOUNT, default=None),
    ignored("--triggerEventId", "trigger_event_id", _NO_ACCOUNT),
    ignored("--ports", "ports", "containers have the network of their host, with all its ports"),
    ignored("--ignoreFiles", "ignore_files", "what is not to go to hosts is in .shantyignore"),
    ignored("--isPreemptible", "is_preemptible", "nothing is preempted", is_flag=True,
            default=None),
    ignored("--modelType", "model_type", "models are not registered; see the run's artifacts"),
    ignored("--modelPath", "model_path", "models are not registered; see the run's artifacts"),
    ignored("--tensorboard --tensorboard_set", "tensorboard",
            "no TensorBoard is started; `shanty experiments metrics` has what the script logs",
            is_flag=False, flag_value="new"),
)  # fmt: skip

MULTINODE: Sequence[Flag] = (
    does("--experimentType --experimentTypeId", "experiment_type",
         "MPI. GRPC, which is TensorFlow 1's parameter servers, is refused.", _MACHINES,
         metavar="MPI"),
    does("--masterCommand", "master_command",
         "The line for a shell on the master; mpirun takes the ranks to all machines.",
         _MACHINES, metavar="COMMAND"),
    does("--masterMachineType", "master_machine_type",
         "Type of the master's machine [that of the workers].", _MACHINES, **_machine_type),
    does("--masterCount", "master_count", "How many of these [1].", _MACHINES,
         type=click.IntRange(1), metavar="N"),
    does("--workerMachineType", "worker_machine_type", "Type of the workers' machines.",
         _MACHINES, **_machine_type),
    does("--workerCount", "worker_count", "How many of these.", _MACHINES,
         type=click.IntRange(0), metavar="N"),
    does("--masterContainer", "master_container", "The master's image [no container].",
         _CONTAINERS, metavar="IMAGE"),
    does("--workerContainer", "worker_container", "The workers' image.", _CONTAINERS,
         metavar="IMAGE"),
    *_registry("master", "master_", "the master's image"),
    *_registry("worker", "worker_", "the workers' image"),
    *_COMMON,
    ignored("--workerCommand", "worker_command", "shanty's own agents start ranks on workers"),
    ignored("--masterContainerUser", "master_container_user", _USERS),
    ignored("--workerContainerUser", "worker_container_user", _USERS),
    *(ignored(f"--parameterServer{word}", f"parameter_server_{param}", _NO_SERVERS)
      for word, param in (
          ("Container", "container"), ("MachineType", "machine_type"), ("Command", "command"),
          ("Count", "count"), ("ContainerUser", "container_user"),
          ("RegistryUsername --parameterServerRegistryContainerUser", "registry_username"),
          ("RegistryPassword", "registry_password"), ("RegistryUrl", "registry_url"))),
)  # fmt: skip

SINGLENODE: Sequence[Flag] = (
    does("--command", "command", "The line for a shell on the machine.", _MACHINES,
         metavar="COMMAND"),
    does("--machineType", "machine_type", "Type of the machine.", _MACHINES, **_machine_type),
    does("--container", "container", "The image [no container].", _CONTAINERS, metavar="IMAGE"),
    *_registry("", "", "the image"),
    *_COMMON,
    ignored("--containerUser", "container_user", _USERS),
    ignored("--count", "count", "a single-node experiment has one machine"),
)  # fmt: skip

# Options of `shanty run` that these verbs have as well.
OWN = ("mpi", "runtime", "mounts", "gpus", "time_limit", "retries", "priority", "share")

# ------------------------------------------------- which experiment a verb is about


def _left_out(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value:
        note("left out: --apiKey (shanty has no accounts)")


api_key_option = click.option(
    "--apiKey", "api_key", hidden=True, expose_value=False, callback=_left_out
)


def of_experiment(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --id, or the id by itself, and the platform's flags without a meaning."""
    command = api_key_option(options_file(command))
    command = click.option(
        "--id", "run_id", metavar="ID", shell_complete=completed("runs"),
        help="Its id, the start of that, its name, or last.",
    )(command)  # fmt: skip
    return click.argument(
        "reference", metavar="[ID]", required=False, shell_complete=completed("runs")
    )(command)


def reference_of(run_id: str | None, reference: str | None) -> str:
    """Return which experiment is meant; UsageError where it was not said, or twice."""
    if run_id and reference and run_id != reference:
        raise UsageError(f"--id {run_id} and {reference} are two experiments", fix="name one")
    found = run_id or reference
    if not found:
        raise UsageError("no experiment is named", fix="name it: --id ID, or last")
    return found
