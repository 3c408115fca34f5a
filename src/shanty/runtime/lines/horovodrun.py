"""Reads a `horovodrun` line as Horovod 0.28 reads it, and writes it as a line for mpirun."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.lines.option_table import (
    NUMBER,
    PAIR,
    SWITCH,
    TEXT,
    WHOLE,
    Given,
    Line,
    one_of,
    table,
)
from shanty.runtime.lines.settings_file import read_settings
from shanty.runtime.mpi.hostfiles import Read, read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.mpi.processes import OUTPUT_FILES
from shanty.runtime.suggestions import nearest, place

HOROVOD = "0.28.1"  # whose line this is
_HOSTS = re.compile(r"^[\w.-]+(:[0-9]+)?(,[\w.-]+(:[0-9]+)?)*$")
_OPERATORS = "/etc/mpi/discover_hosts.sh"  # a script of Kubeflow's operator names a job's hosts
_DISCOVERY = 60  # seconds that a script has for naming the hosts

# ---------------------------------------------------------------------------- the options

_LEVELS = "-the run decides how an allreduce goes over the hosts"
_TUNING = "-nothing is tuned while a job runs"
_FIXED = "-the number of ranks does not change in a job of this line; `shanty run --elastic=N -n M \
SCRIPT` goes on with N ranks when others are lost"
_GLOO = "-ranks share their gradients over MPI"

OPTIONS = table(
    # How many and where
    ("-np --num-proc", WHOLE, "@count ranks"),
    ("-H --hosts", TEXT, "@on hosts"),
    ("--hostfile -hostfile", TEXT, "@on hostfile"),
    ("--host-discovery-script", TEXT, "@on script"),
    ("--slots-per-host", WHOLE, "@whole slots"),
    ("--network-interfaces --network-interface", TEXT, "@interfaces"),
    ("-p --ssh-port", WHOLE, "@ssh -p"),
    ("-i --ssh-identity-file", TEXT, "@ssh -i"),
    # The start
    ("-v --version", SWITCH, "@ask version"),
    ("-cb --check-build", SWITCH, "@ask build"),
    ("-h --help", SWITCH, "@ask help"),
    ("--start-timeout", WHOLE, "@whole start_timeout"),
    ("--verbose", SWITCH, "@switch verbose"),
    ("--output-filename", TEXT, "@set output"),
    ("--prefix-output-with-timestamp -prefix-timestamp", SWITCH, "@mpi-args --timestamp-output"),
    ("--config-file", TEXT, "@config"),
    ("--gloo", SWITCH, _GLOO),
    ("--mpi / --disable-cache", SWITCH, ""),
    ("--jsrun", SWITCH, "!jsrun is LSF's own launcher, a run has another|leave it out"),
    # Fusion, cycles, cache
    ("--fusion-threshold-mb", WHOLE, "@mebibytes HOROVOD_FUSION_THRESHOLD"),
    ("--cycle-time-ms", NUMBER, "=HOROVOD_CYCLE_TIME"),
    ("--cache-capacity", WHOLE, "=HOROVOD_CACHE_CAPACITY"),
    ("--hierarchical-allreduce / --hierarchical-allgather / --torus-allreduce", SWITCH, _LEVELS),
    ("--autotune", SWITCH, _TUNING),
    ("--autotune-log-file", TEXT, _TUNING),
    ("--autotune-warmup-samples / --autotune-steps-per-sample", WHOLE, _TUNING),
    ("--autotune-bayes-opt-max-samples", WHOLE, _TUNING),
    ("--autotune-gaussian-process-noise", NUMBER, _TUNING),
    ("--no-hierarchical-allreduce / --no-hierarchical-allgather", SWITCH, ""),
    ("--no-torus-allreduce / --no-autotune / --no-mpi-threads-disable", SWITCH, ""),
    # A changing number of ranks
    ("--min-np --min-num-proc / --max-np --max-num-proc", WHOLE, _FIXED),
    ("--elastic-timeout / --reset-limit", WHOLE, _FIXED),
    ("--blacklist-cooldown-range", PAIR, _FIXED),
    # Timeline, stalls, log
    ("--timeline-filename", TEXT, "=HOROVOD_TIMELINE"),
    ("--timeline-mark-cycles", SWITCH, "=HOROVOD_TIMELINE_MARK_CYCLES 1"),
    ("--no-timeline-mark-cycles", SWITCH, "=HOROVOD_TIMELINE_MARK_CYCLES 0"),
    ("--no-stall-check", SWITCH, "=HOROVOD_STALL_CHECK_DISABLE 1"),
    ("--stall-check", SWITCH, "=HOROVOD_STALL_CHECK_DISABLE 0"),
    ("--stall-check-warning-time-seconds", WHOLE, "=HOROVOD_STALL_CHECK_TIME_SECONDS"),
    ("--stall-check-shutdown-time-seconds", WHOLE, "=HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    ("--log-level", TEXT, "@log-level"),
    ("--log-with-timestamp --no-log-hide-timestamp", SWITCH, "=HOROVOD_LOG_HIDE_TIME 0"),
    ("--log-without-timestamp --log-hide-timestamp", SWITCH, "=HOROVOD_LOG_HIDE_TIME 1"),
    # Libraries
    ("--mpi-threads-disable", SWITCH, "-communication always has its own thread"),
    ("--mpi-args / --binding-args", TEXT, "@mpi-args"),
    ("--tcp", SWITCH, "@tcp"),
    ("--num-nccl-streams", WHOLE, "-PyTorch manages NCCL's streams itself"),
    ("--thread-affinity", WHOLE, "-the thread that communicates is bound like its rank"),
    ("--gloo-timeout-seconds", WHOLE, _GLOO),
)

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

# The keys in a configuration file, by its sections and by the beginnings of the options' names.
_SECTIONS = (
    ("params", "--", "fusion_threshold_mb cycle_time_ms cache_capacity"),
    ("params", "--", "hierarchical_allreduce hierarchical_allgather torus_allreduce"),
    ("autotune", "--autotune-", "log_file warmup_samples steps_per_sample bayes_opt_max_samples"),
    ("autotune", "--autotune-", "gaussian_process_noise"),
    ("timeline", "--timeline-", "filename mark_cycles"),
    ("stall_check", "--stall-check-", "warning_time_seconds shutdown_time_seconds"),
    ("library_options", "--", "mpi_threads_disable num_nccl_streams thread_affinity"),
    ("library_options", "--", "gloo_timeout_seconds"),
    ("logging", "--log-", "level"),
)


def _sides(name: str) -> Tuple[str, ...]:
    """Returns an option; of a switch, both of its sides."""
    opposite = "--no-" + name[2:]
    return (name, opposite) if opposite in OPTIONS else (name,)


# The option that each key of a file stands for.
_IN_FILE: Dict[str, Tuple[str, ...]] = {
    "autotune.enabled": _sides("--autotune"),
    "stall_check.enabled": _sides("--stall-check"),
    "logging.with_timestamp": ("--log-with-timestamp", "--log-without-timestamp"),
    **{
        f"{section}.{key}": _sides(prefix + key.replace("_", "-"))
        for section, prefix, keys in _SECTIONS
        for key in keys.split()
    },
}

# ------------------------------------------------------------- what a line by itself prints

_FRAMEWORKS = ("tensorflow", "torch")
_TRY = "import importlib.util as i, sys; print(*(n for n in sys.argv[1:] if i.find_spec(n)))"
_BUILD = """\
Horovod {version}, by shanty:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [ ] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [ ] Gloo"""

# ------------------------------------------------------------------------- reading a line


@dataclass
class Wanted(Line):
    """A line of horovodrun, and what it asks for."""

    program = "horovodrun"
    example = "shanty horovodrun -np 4 -H a:2,b:2 python train.py"
    options = OPTIONS
    placed = ""  # the option that said which hosts

    ranks: Optional[int] = None
    hosts: str = ""
    script: str = ""  # that names the hosts
    slots: int = 0  # of each host that it names
    ssh: List[str] = field(default_factory=list)  # options of ssh(1)
    interfaces: List[str] = field(default_factory=list)
    output: str = ""
    start_timeout: Optional[int] = None  # seconds

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options of the line, and those of its files that it does not decide."""
        decided = {name for _, option, _ in given for name in option.names}
        for sides in _IN_FILE.values():
            if not decided.isdisjoint(sides):
                decided.update(sides)
        files = [value for _, option, value in given if option.rule == "@config"]
        from_files = [each for file in files for each in _from_file(file, self.read)]
        return [*(each for each in from_files if decided.isdisjoint(each[1].names)), *given]

    def checked(self) -> None:
        """Works out what the options mean together; UsageError where that makes no sense."""
        if self.script:
            named = _output_of(self.script)
            each = f":{self.slots}" if self.slots else ""
            lines = dict.fromkeys(named.split())  # one a line, as HOST or HOST:SLOTS
            self.hosts = ",".join(line if ":" in line else line + each for line in lines)
            if not _HOSTS.match(self.hosts):
                raise UsageError(f"{self.script} named no hosts: {named.strip()[:200]!r}")
        elif self.slots:
            self.leave_out("--slots-per-host", "hosts have the slots that they name")
        if "HOROVOD_TIMELINE" not in self.variables:
            self.variables.pop("HOROVOD_TIMELINE_MARK_CYCLES", None)

    def _on(self, spelled: str, value: str, field: str) -> None:
        if self.placed:
            raise UsageError(f"{self.placed} and {spelled} both name hosts", fix="leave one out")
        if field == "hosts" and not _HOSTS.match(value):
            raise UsageError(
                f"{spelled} {value} is not a list of hosts",
                fix="write it as worker-0:2,worker-1:2",
            )
        if value == _OPERATORS and not os.path.exists(value):
            self.remarks.append(f"{spelled} {value} does not exist: the hosts are the run's")
            return
        if field == "script":
            self.remarks.append(f"{spelled} {value} is asked once, at the start: {_FIXED[1:]}")
        self.placed = spelled
        setattr(self, field, value)

    def _interfaces(self, _: str, value: str, __: str) -> None:
        self.interfaces += [name for name in value.split(",") if name]
        self.variables["NCCL_SOCKET_IFNAME"] = ",".join(self.interfaces)

    def _ssh(self, _: str, value: str, letter: str) -> None:
        self.ssh += [letter, value]

    def _log_level(self, spelled: str, value: str, _: str) -> None:
        self.variables["HOROVOD_LOG_LEVEL"] = one_of(spelled, value, LOG_LEVELS)

    def _tcp(self, *_: str) -> None:
        self.variables["NCCL_IB_DISABLE"] = "1"
        self.launcher += ["-mca", "pml", "ob1", "-mca", "btl", "self,sm,tcp"]

    def _mebibytes(self, _: str, value: str, variable: str) -> None:
        self.variables[variable] = str(int(value) << 20)

    def mpirun_words(self) -> List[str]:
        """Returns the words for mpirun, without hosts and variables."""
        words: List[str] = []
        if self.ranks is not None:
            words += ["-np", str(self.ranks)]
        if self.interfaces:
            words += ["-mca", "btl_tcp_if_include", ",".join(self.interfaces)]
        return [*words, *self.launcher, *self.command]

    def mpirun_line(self, layout: Layout, environ: Mapping[str, str], python: str) -> List[str]:
        """Returns the whole line for mpirun; see `Line`.

        horovodrun passes its environment on to all ranks.
        """
        words: List[str] = []
        hosts, several = self.hosts, len(layout.hosts) > 1
        if not hosts and not self.hostfile and not several and (self.ranks or 0) > layout.slots:
            hosts = f"{layout.hosts[0].name}:{self.ranks}"  # horovodrun takes any number there
        if hosts:
            words += ["-H", hosts]
        if self.hostfile:
            words += ["--hostfile", self.hostfile]
        if self.ssh and not several:
            words += ["-mca", "plm_rsh_args", " ".join(self.ssh)]
        elif self.ssh:
            self.leave_out(" ".join(self.ssh), "the run is connected to its hosts")
        if self.start_timeout is not None:
            self.leave_out("--start-timeout", "it is an option of `shanty run`")
        if self.output:
            self.variables[OUTPUT_FILES] = os.path.abspath(self.output)
        own = {name: environ[name] for name in sorted(environ) if name.startswith("HOROVOD_")}
        words += self.exported(layout, own)
        return [*words, *self.mpirun_words()]

    def answer(self, python: str) -> str:
        """Returns what a line that starts nothing prints, else ""; `python` is the ranks'."""
        if self.asks == "version":
            return HOROVOD
        if self.asks != "build":
            return super().answer(python)
        import subprocess

        found: List[str] = []
        words = [python, "-c", _TRY, *_FRAMEWORKS]
        try:
            done = subprocess.run(words, timeout=60, check=False, stdout=subprocess.PIPE)
            found = done.stdout.decode("utf-8", "replace").split()
        except (OSError, subprocess.TimeoutExpired):
            pass
        marks = {name: "X" if name in found else " " for name in _FRAMEWORKS}
        return _BUILD.format(version=HOROVOD, **marks)


def parse(words: Sequence[str], read: Read = read_file) -> Wanted:
    """Returns what the line `words` (without `horovodrun` itself) asks for; see `Line.parsed`."""
    return Wanted(os.environ, read).parsed(words)


def _from_file(path: str, read: Read) -> List[Given]:
    """Returns the options that a configuration file stands for."""
    text = read(path)
    if text is None:
        raise NotFoundError(f"--config-file {path}: file not found")
    found: List[Given] = []
    for key, value in read_settings(text, path).items():
        where = f"{key} in {path}"
        if key == "controller" and str(value).lower() in ("mpi", "gloo"):
            found.append((where, OPTIONS[f"--{str(value).lower()}"], ""))
            continue
        sides = _IN_FILE.get(key)
        if sides is None:
            known = ["controller", *_IN_FILE]
            fix = nearest(key, known, f"the settings are {', '.join(known)}")
            line = place(path, text, key.rpartition(".")[2])
            raise UsageError(f"{line}: horovodrun has no setting {key}", fix=fix)
        if len(sides) == 2 and value is not None:
            off = value is False or value == "0"
            found.append((where, OPTIONS[sides[off]], ""))
        elif value is not None:
            OPTIONS[sides[0]].check(where, [str(value)])
            found.append((where, OPTIONS[sides[0]], str(value)))
    return found


def _output_of(script: str) -> str:
    """Returns what the script that names the hosts prints; UsageError where it fails."""
    import subprocess  # most lines need none

    words, pipe, null = shlex.split(script), subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(words, stdin=null, stdout=pipe, timeout=_DISCOVERY, check=True)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        why = f"it did not name hosts within {_DISCOVERY} s"
    except subprocess.CalledProcessError as error:
        why = f"it ended with {error.returncode}"
    except (OSError, ValueError) as error:
        why = str(error)
    raise UsageError(f"--host-discovery-script {script} failed", why)
