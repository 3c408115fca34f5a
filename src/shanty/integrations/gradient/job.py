"""Makes a job of what was typed for Gradient's `experiments create` and `experiments run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shanty.client import jobs
from shanty.client.context import Context
from shanty.integrations.gradient.flags import ARTIFACTS, MULTINODE, OWN, SINGLENODE, registry_flag
from shanty.integrations.platforms import parts
from shanty.integrations.platforms.flags import Flag, left_out, note_left_out, refuse
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec

_PLACES = ("/paperspace",)  # where Gradient had the workspace
_SECRET = "secret:"  # how a value of --experimentEnv named one of Gradient's secrets


def multinode(values: Mapping[str, Any], here: Context) -> JobSpec:
    """Return the job of an MPI experiment: a master with the line, and workers beside it."""
    given = dict(values)
    kind = (given["experiment_type"] or "MPI").upper()
    if kind == "GRPC":
        raise UsageError(
            "--experimentType GRPC has no counterpart here",
            "its parameter servers are of TensorFlow 1, and shanty's ranks talk by MPI",
            "train with shanty.tensorflow or Horovod, and take --experimentType MPI",
        )
    if kind != "MPI":
        raise UsageError(f"--experimentType takes MPI, not {given['experiment_type']!r}")
    refuse(MULTINODE, given)
    parts.required(
        given,
        master_command="--masterCommand",
        worker_machine_type="--workerMachineType",
        worker_count="--workerCount",
    )
    workers = (given["worker_machine_type"], given["worker_count"])
    master = (given["master_machine_type"] or workers[0], given["master_count"] or 1)
    master_image, worker_image = _image(given, "master"), _image(given, "worker")
    image = worker_image or (None if workers[1] else master_image)
    if bool(image) != bool(master_image):
        missing = "--workerContainer" if master_image else "--masterContainer"
        raise UsageError(
            f"{missing} must be given, too", "a run is in containers on all machines, or on none"
        )
    return _job(
        given,
        here,
        MULTINODE,
        command=given["master_command"],
        machines=tuple(each for each in (master, workers) if each[1]),
        image=image,
        master_image=master_image if master_image != image else None,
        logins=[_login(given, "master"), _login(given, "worker")],
    )


def singlenode(values: Mapping[str, Any], here: Context) -> JobSpec:
    """Return the job of an experiment on one machine: the line, once."""
    given = dict(values)
    refuse(SINGLENODE, given)
    parts.required(given, command="--command", machine_type="--machineType")
    return _job(
        given,
        here,
        SINGLENODE,
        command=given["command"],
        machines=((given["machine_type"], 1),),
        image=_image(given, ""),
        logins=[_login(given, "")],
    )


def _image(given: Mapping[str, Any], whose: str) -> str | None:
    """Return the image of the `master` or `worker`, or that of a single machine."""
    param = f"{whose}_" if whose else ""
    image, registry = given[f"{param}container"], given[f"{param}registry_url"]
    return parts.image_of(image, registry, registry_flag(whose, "Url"))


def _login(given: Mapping[str, Any], whose: str) -> parts.Login:
    param = f"{whose}_registry_" if whose else "registry_"
    user, password = given[f"{param}username"], given[f"{param}password"]
    return user, password, registry_flag(whose, "Username")


def _job(
    given: dict[str, Any],
    here: Context,
    flags: Sequence[Flag],
    *,
    command: str,
    machines: tuple[tuple[str, int], ...],
    image: str | None,
    logins: Sequence[parts.Login],
    master_image: str | None = None,
) -> JobSpec:
    own = parts.job_options(given, OWN)
    env = _variables(given["experiment_env"] or {})
    data = parts.data_mounts(_datasets(given), image, "--datasetUri")
    mounts = (*data, *_artifacts(given["artifact_directory"], image, machines, here))
    parts.check_types(here, machines)
    user, password = parts.registry_login(logins, here)
    if user and image is None:
        raise UsageError("a login for a registry is for images, and there is none")
    folder, source = parts.workspace(
        given["workspace"],
        given["workspace_ref"],
        given["workspace_username"],
        given["workspace_password"],
        here,
    )
    inside = parts.inner_folder(given["working_directory"], folder, _PLACES)
    note_left_out(left_out(flags, given))
    return jobs.job_typed(
        parts.line(command, inside),
        Path(folder),
        {
            **own,
            "machines": machines,
            "image": image,
            "master_image": master_image,
            "mounts": (*(own["mounts"] or ()), *mounts) if image else own["mounts"],
            "registry_user": user,
            "registry_password": password,
            "source": source,
            "name": jobs.run_name(given["name"]),
            "tags": parts.tags_of(given["tags"], given["tags_comma"], given["project_id"]),
            "env": env,
        },
    )


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    for key, value in env.items():
        if value.startswith(_SECRET):
            raise UsageError(
                f"{key} in --experimentEnv is one of Gradient's secrets, which are not here",
                fix=f'write its value: {{"{key}": "…"}}',
            )
    return dict(env)


def _datasets(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return folders of data and their places, of the two lists that belong together."""
    folders, names = given["dataset_uri"], given["dataset_name"]
    if len(names) > len(folders):
        raise UsageError(
            f"--datasetName {names[len(folders)]} has no --datasetUri",
            "Gradient's datasets are not here",
            "name a folder that all machines have: --datasetUri FOLDER",
        )
    found = []
    for at, folder in enumerate(folders):
        name = names[at] if at < len(names) and names[at] else Path(folder.rstrip("/")).name
        found.append((folder, f"/data/{name}"))
    return found


def _artifacts(
    wanted: str | None, image: str | None, machines: tuple[tuple[str, int], ...], here: Context
) -> tuple[tuple[str, str, str], ...]:
    """Return the mount of the run's artifacts at the place where a script saves them."""
    if image is None:
        if wanted:
            raise UsageError(
                f"--artifactDirectory {wanted} is for containers, and there is none",
                "what a script saves is kept in a folder of the run",
                'save in "$SHANTY_RUN_DIR/artifacts", or in shanty.artifacts()',
            )
        return ()
    if wanted is None and any(here.machine_type(name).kind == "k8s" for name, _ in machines):
        return ()  # pods have no such folder
    place = wanted or ARTIFACTS
    if not place.startswith("/"):
        raise UsageError(
            f"--artifactDirectory {place} is not absolute", fix=f"as {ARTIFACTS} is, the default"
        )
    return (("run:artifacts", place, "rw"),)
