"""Reads a line for deepspeed's launcher. The options are those of DeepSpeed 0.19."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Union

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.option_table import SWITCH, TEXT, WHOLE, Given
from shanty.runtime.lines.process_line import (
    ALL_HOSTS,
    FIXED,
    ITSELF,
    OUTPUT,
    ProcessLine,
    spelled_both_ways,
)
from shanty.runtime.localhost import is_here

_HOSTFILE = "/job/hostfile"  # its default
_ENV_FILE = ".deepspeed_env"
_EXPORTED = ("NCCL", "PYTHON", "MV2", "UCX", "MLFLOW")  # variables that begin so go to all hosts
_OF_A_HOST = ("PYTHONPATH", "PYTHONHOME", "PYTHONEXECUTABLE")  # these do not: paths differ
_SSH = "-hosts are reached as `shanty run` reaches them"
_BINDING = "-`shanty run --cpus-per-rank N` binds ranks to cores"

OPTIONS = spelled_both_ways(
    # How many and where
    ("--num_gpus --num_accelerators", WHOLE, "@count per_node"),
    ("--num_nodes", TEXT, "@nodes"),
    ("-H --hostfile", TEXT, "@set hostfile"),
    ("-i --include", TEXT, "@include"),
    ("-e --exclude", TEXT, "!the GPUs are not known when the line is read|"
     "name the GPUs to use: --include localhost:0,1"),
    ("--node_rank", TEXT, ALL_HOSTS),
    ("--min_elastic_nodes / --max_elastic_nodes", TEXT, FIXED),
    ("--elastic_training", SWITCH, FIXED),
    # How they find and reach each other
    ("--master_addr", TEXT, ITSELF),
    ("--master_port", WHOLE, ITSELF),
    ("--launcher / --launcher_args", TEXT, "-the run has its own launcher"),
    ("--no_ssh / --no_ssh_check / --force_multi", SWITCH, _SSH),
    ("--ssh_port", WHOLE, _SSH),
    # What they run
    ("--module", SWITCH, "@switch module"),
    ("--no_python", SWITCH, "@switch no_python"),
    ("--no_local_rank", SWITCH, "@switch no_local_rank"),
    ("--venv_script", TEXT, "-`shanty run --python ENVIRONMENT` names it"),
    ("--autotuning", TEXT, "!it starts many jobs, one after the other|leave it out"),
    ("--bind_cores_to_rank", SWITCH, _BINDING),
    ("--bind_core_list", TEXT, _BINDING),
    # Their output
    ("--enable_each_rank_log", TEXT, OUTPUT),
    ("--save_pid", SWITCH, "-`shanty stop` ends a run"),
    ("--log_level", TEXT, ""),
    ("-q --quiet", SWITCH, ""),
    ("-h --help", SWITCH, "@ask help"),
)  # fmt: skip


@dataclass
class Wanted(ProcessLine):
    """A line of deepspeed, and what it asks for."""

    program = "deepspeed"
    options = OPTIONS
    says_number = "--num_gpus"
    says_hosts = "--num_nodes"

    default: Union[int, str] = "gpu"
    no_local_rank: bool = False
    include: str = ""

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options; UsageError where one names hosts, and another their number."""
        numbers = [
            said for said, option, _ in given if option.names[0] in ("--num_gpus", "--num_nodes")
        ]
        included = [said for said, option, _ in given if option.names[0] == "-i"]
        if numbers and included:
            raise UsageError(
                f"{included[0]} and {numbers[0]} of deepspeed exclude each other",
                fix="leave one out",
            )
        return given

    def _include(self, spelled: str, value: str, _: str) -> None:
        host, colon, devices = value.partition(":")
        if "@" in value or not is_here(host):
            raise UsageError(
                f"{spelled} {value} of deepspeed has no counterpart here",
                "it names hosts, and a run has its own",
                "name them: shanty run --on HOST,HOST -- deepspeed --num_gpus N …",
            )
        if colon and not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", devices):
            raise UsageError(f"{spelled} takes HOST:0,1,…, not {value!r}")
        self.include = value
        self.nodes = 1, 1
        if colon:
            self.per_node = len(set(devices.split(",")))
            self.variables["CUDA_VISIBLE_DEVICES"] = devices

    def take_env_files(self) -> None:
        """Takes the variables that deepspeed gives to all hosts.

        They are some of its own environment, and those of its file, in the home and in the current
        folder.
        """
        name = self.environ.get("DS_ENV_FILE") or _ENV_FILE
        found = {
            key: value
            for key, value in self.environ.items()
            if key.startswith(_EXPORTED) and key not in _OF_A_HOST
        }
        for path in dict.fromkeys((os.path.join(self.environ.get("HOME", ""), name), name)):
            text = self.read(path)
            for number, line in enumerate((text or "").lstrip("\ufeff").splitlines(), 1):
                if not line.strip() or line.lstrip().startswith("#"):
                    continue
                key, equals, value = line.strip().removeprefix("export ").partition("=")
                if not equals or not re.fullmatch(r"\w+", key.strip()):
                    raise UsageError(
                        f"{path}, line {number}: {line.strip()!r} is not NAME=VALUE",
                        "deepspeed takes the variables of all ranks from that file",
                    )
                found[key.strip()] = value.strip()
            if text is not None:
                self.remarks.append(f"ranks get the variables in {path}, as with deepspeed")
        self.variables = {**found, **self.variables}

    def checked(self) -> None:
        """Raises UsageError for options that contradict each other."""
        super().checked()
        self.take_env_files()
        if not self.no_local_rank:
            self.local_rank = "--local_rank"
        self.variables.setdefault("CROSS_RANK", "0")  # rank.exec has each rank's own
        if self.hostfile and self.include:
            raise UsageError(
                "--hostfile and --include both name hosts", fix="leave one of them out"
            )
        if self.hostfile and self.read(self.hostfile) is None:
            raise UsageError(
                f"--hostfile {self.hostfile}: file not found",
                fix="leave it out for this machine",
            )
        if not self.hostfile and not self.include and self.read(_HOSTFILE) is not None:
            self.hostfile = _HOSTFILE
