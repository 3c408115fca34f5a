"""The flags of Clusterone's `create job single` and `create job distributed`, and what they do."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shanty.client.terminal.options import completed
from shanty.integrations.platforms.flags import Flag, does, ignored

_WHO, _CODE, _MACHINES = "Name", "Code and command", "Machines"
_IMAGES = "the image has them, or else the Python environment from which you start the job"
_machine_type = {"metavar": "TYPE", "shell_complete": completed("machine_types")}

_COMMON = (
    does("--name", "name", "Name of the run.", _WHO, metavar="NAME"),
    does("--tags", "tags_comma", "Tags with commas between them.", _WHO, metavar="TAG,TAG"),
    does("--project", "project", "Kept as the tag project:NAME; the code is that of this folder.",
         _WHO, metavar="USER/NAME"),
    does("--project-path", "project_path",
         "Where the code is instead: a folder, a git URL, or an archive.", _CODE,
         metavar="FOLDER|URL", shell_complete=completed("folders")),
    does("--commit", "commit", "The commit of it to take; of this folder if it is of git.", _CODE,
         metavar="COMMIT"),
    does("--command", "command",
         "The line to run [python -m main]. With a launcher in it (mpirun, dmlc-submit), it runs "
         "on one machine and takes the ranks to all; without one each machine runs it as a rank.",
         _CODE, metavar="COMMAND"),
    does("--setup-command --setup_command", "setup_command",
         "In containers, what to run in each before; without one a note says where to run it.",
         _CODE, metavar="COMMAND"),
    does("--module", "module", "A Python module to run instead of --command; what follows is for "
         "the module.", _CODE, metavar="MODULE"),
    does("--package-path", "package_path", "The folder of the project that it is in.", _CODE,
         metavar="FOLDER"),
    does("--requirements", "requirements", "The same as --setup-command 'pip install -r FILE'.",
         _CODE, metavar="FILE"),
    does("--datasets", "datasets",
         "Folders that all machines have, with commas between them; in containers they are at the "
         "same path. A name of one of Clusterone's datasets is refused.", _CODE,
         metavar="FOLDER,FOLDER"),
    does("--docker-image", "docker_image", "The image [no container].", _MACHINES,
         metavar="IMAGE"),
    does("--gpu-count", "gpu_count", "How many GPUs of each machine the job sees [all].",
         _MACHINES, type=click.IntRange(0, 64), metavar="N"),
    does("--time-limit", "limit", "End the job then: 20h12m [never].", _MACHINES, metavar="TIME"),
    ignored("--framework", "framework", _IMAGES),
    ignored("--framework-version", "framework_version", _IMAGES),
    ignored("--python-version", "python_version", _IMAGES),
    ignored("--package-manager", "package_manager", _IMAGES),
    ignored("--description", "description", "a run has a name and tags"),
)  # fmt: skip

DISTRIBUTED: Sequence[Flag] = (
    does("--worker-type", "worker_type", "Type of the workers' machines.", _MACHINES,
         **_machine_type),
    does("--worker-replicas", "worker_replicas", "How many workers [2].", _MACHINES,
         type=click.IntRange(1), metavar="N"),
    does("--ps-type", "ps_type",
         "Type of the machine beside them, which MPI jobs have for their master [--worker-type].",
         _MACHINES, **_machine_type),
    does("--ps-docker-image", "ps_docker_image", "The image there [--docker-image].", _MACHINES,
         metavar="IMAGE"),
    *_COMMON,
    ignored("--ps-replicas", "ps_replicas", "there is one master, and no parameter servers",
            type=click.IntRange(1)),
)  # fmt: skip

SINGLE: Sequence[Flag] = (
    does("--instance-type", "instance_type", "Type of the machine.", _MACHINES, **_machine_type),
    *_COMMON,
)

# Options of `shanty run` that these verbs have as well; --time-limit is the platform's own.
OWN = ("mpi", "runtime", "mounts", "retries", "priority", "share")
