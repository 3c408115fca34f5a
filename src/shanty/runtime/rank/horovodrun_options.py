"""Every option of `horovodrun` 0.28, and what becomes of it in a run.

A rule is one of

    =NAME        the value is put into that variable
    =NAME VALUE  that variable gets this value
    -REASON      nothing, and a note that gives the reason
    !REASON|FIX  it is refused
    @CODE        what `horovodrun` does for the code
    (nothing)    it says what is so in any case
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

from shanty.runtime.rank.option_table import NUMBER, PAIR, SWITCH, TEXT, WHOLE, Option

_ALL: List[Option] = []


def _row(names: str, takes: str, rule: str = "", scale: int = 1) -> None:
    _ALL.append(Option(tuple(names.split()), takes, rule, scale=scale))


_LEVELS = "-how an allreduce goes over the hosts is decided by the run"
_TUNING = "-nothing is tuned while a job runs"
_FIXED = "-the number of ranks does not change while a job runs; a job that was broken off \
resumes from its last commit when it is run again"
_GLOO = "-ranks share their gradients over MPI"

# How many and where
_row("-np --num-proc", WHOLE, "@count")
_row("-H --hosts", TEXT, "@hosts")
_row("--hostfile -hostfile", TEXT, "@hostfile")
_row("--host-discovery-script", TEXT, "@discover")
_row("--slots-per-host", WHOLE, "@slots")
_row("--network-interfaces --network-interface", TEXT, "@interfaces")
_row("-p --ssh-port", WHOLE, "@ssh -p")
_row("-i --ssh-identity-file", TEXT, "@ssh -i")

# The start
_row("-v --version", SWITCH, "@ask version")
_row("-cb --check-build", SWITCH, "@ask build")
_row("-h --help", SWITCH, "@ask help")
_row("--disable-cache", SWITCH)
_row("--start-timeout", WHOLE, "@start-timeout")
_row("--verbose", SWITCH, "@verbose")
_row("--output-filename", TEXT, "@output")
_row("--prefix-output-with-timestamp -prefix-timestamp", SWITCH, "@words --timestamp-output")
_row("--config-file", TEXT, "@config")
_row("--gloo", SWITCH, _GLOO)
_row("--mpi", SWITCH)
_row("--jsrun", SWITCH, "!jsrun is LSF's own launcher, a run has another|leave it out")

# Fusion, cycles, cache
_row("--fusion-threshold-mb", WHOLE, "=HOROVOD_FUSION_THRESHOLD", 1 << 20)
_row("--cycle-time-ms", NUMBER, "=HOROVOD_CYCLE_TIME")
_row("--cache-capacity", WHOLE, "=HOROVOD_CACHE_CAPACITY")
for _name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce"):
    _row("--" + _name, SWITCH, _LEVELS)
    _row("--no-" + _name, SWITCH)
_row("--autotune", SWITCH, _TUNING)
_row("--no-autotune", SWITCH)
_row("--autotune-log-file", TEXT, _TUNING)
_row("--autotune-warmup-samples", WHOLE, _TUNING)
_row("--autotune-steps-per-sample", WHOLE, _TUNING)
_row("--autotune-bayes-opt-max-samples", WHOLE, _TUNING)
_row("--autotune-gaussian-process-noise", NUMBER, _TUNING)

# A changing number of ranks
_row("--min-np --min-num-proc", WHOLE, _FIXED)
_row("--max-np --max-num-proc", WHOLE, _FIXED)
_row("--elastic-timeout", WHOLE, _FIXED)
_row("--reset-limit", WHOLE, _FIXED)
_row("--blacklist-cooldown-range", PAIR, _FIXED)

# Timeline, stalls, log
_row("--timeline-filename", TEXT, "=HOROVOD_TIMELINE")
_row("--timeline-mark-cycles", SWITCH, "=HOROVOD_TIMELINE_MARK_CYCLES 1")
_row("--no-timeline-mark-cycles", SWITCH, "=HOROVOD_TIMELINE_MARK_CYCLES 0")
_row("--no-stall-check", SWITCH, "=HOROVOD_STALL_CHECK_DISABLE 1")
_row("--stall-check", SWITCH, "=HOROVOD_STALL_CHECK_DISABLE 0")
_row("--stall-check-warning-time-seconds", WHOLE, "=HOROVOD_STALL_CHECK_TIME_SECONDS")
_row("--stall-check-shutdown-time-seconds", WHOLE, "=HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
_row("--log-level", TEXT, "@log-level")
_row("--log-with-timestamp --no-log-hide-timestamp", SWITCH, "=HOROVOD_LOG_HIDE_TIME 0")
_row("--log-without-timestamp --log-hide-timestamp", SWITCH, "=HOROVOD_LOG_HIDE_TIME 1")

# Libraries
_row("--mpi-threads-disable", SWITCH, "-communication has a thread of its own")
_row("--no-mpi-threads-disable", SWITCH)
_row("--mpi-args", TEXT, "@mpi-args")
_row("--binding-args", TEXT, "@mpi-args")
_row("--tcp", SWITCH, "@tcp")
_row("--num-nccl-streams", WHOLE, "-NCCL's streams are PyTorch's own matter")
_row("--thread-affinity", WHOLE, "-the thread that communicates is bound as its rank is")
_row("--gloo-timeout-seconds", WHOLE, _GLOO)


OPTIONS: Mapping[str, Option] = {name: option for option in _ALL for name in option.names}
"""Each option by each of its names, with their dashes."""

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

# What the keys of a configuration file say; of a switch, both of its sides.
_IN_FILE: Dict[str, str] = {
    "params.fusion_threshold_mb": "--fusion-threshold-mb",
    "params.cycle_time_ms": "--cycle-time-ms",
    "params.cache_capacity": "--cache-capacity",
    "params.hierarchical_allreduce": "--hierarchical-allreduce --no-hierarchical-allreduce",
    "params.hierarchical_allgather": "--hierarchical-allgather --no-hierarchical-allgather",
    "params.torus_allreduce": "--torus-allreduce --no-torus-allreduce",
    "autotune.enabled": "--autotune --no-autotune",
    "autotune.log_file": "--autotune-log-file",
    "autotune.warmup_samples": "--autotune-warmup-samples",
    "autotune.steps_per_sample": "--autotune-steps-per-sample",
    "autotune.bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
    "autotune.gaussian_process_noise": "--autotune-gaussian-process-noise",
    "timeline.filename": "--timeline-filename",
    "timeline.mark_cycles": "--timeline-mark-cycles --no-timeline-mark-cycles",
    "stall_check.enabled": "--stall-check --no-stall-check",
    "stall_check.warning_time_seconds": "--stall-check-warning-time-seconds",
    "stall_check.shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    "library_options.mpi_threads_disable": "--mpi-threads-disable --no-mpi-threads-disable",
    "library_options.num_nccl_streams": "--num-nccl-streams",
    "library_options.thread_affinity": "--thread-affinity",
    "library_options.gloo_timeout_seconds": "--gloo-timeout-seconds",
    "logging.level": "--log-level",
    "logging.with_timestamp": "--log-with-timestamp --log-without-timestamp",
}
IN_FILE: Mapping[str, Tuple[str, ...]] = {key: tuple(v.split()) for key, v in _IN_FILE.items()}
