"""Lists the options of the launchers that shanty translates, and what each MPI has for them.

Taken from `mpirun --help` of Open MPI 4.1.8, the sources of PRRTE 3.0 and MPICH 5.0, Intel's
`mpiexec.hydra -help`, and from trying each of them on all four.

An entry says what to write instead, in the order of `_COLUMNS`:

    =             the same option, in the dashes of that MPI
    =WORDS        these words; {} stands for the option's value
    -REASON       nothing, and a note that gives the reason
    !REASON|FIX   it is refused
    @CODE         what `placement` or the translator of that family does for the code
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple

_COLUMNS = ("openmpi4", "openmpi5", "mpich", "intel")


@dataclass(frozen=True)
class Option:
    """One option: its usual name, the number of values that follow it, and its translations."""

    name: str
    values: int
    rules: Mapping[str, str]


# The names of one option, with " / " between options for which all is the same.
_ROWS: List[Tuple[str, int, Tuple[str, ...]]] = []


def _all(names: str, values: int, rule: str) -> None:
    _ROWS.append((names, values, (rule,) * 4))


def _row(names: str, values: int, ompi4: str, ompi5: str, mpich: str, intel: str) -> None:
    _ROWS.append((names, values, (ompi4, ompi5, mpich, intel)))


def _ompi(names: str, values: int, hydra: str) -> None:
    """Adds an option of both Open MPIs."""
    _row(names, values, "=", "=", hydra, hydra)


def _hydra(names: str, values: int, ompi: str) -> None:
    """Adds an option of both Hydras."""
    _row(names, values, ompi, ompi, "=", "=")


_OMPI_ONLY = "-it is about the inside of Open MPI"
_HYDRA_ONLY = "-it is about the inside of Hydra"
_DEBUGGER = (
    "!a debugger needs a terminal of its own, which the ranks of a run do not have"
    "|see where the ranks are with `shanty stacks`"
)
_ELSEWHERE = "!it needs a server or a tool outside the run|leave it out"
_FILES = (
    "!the files of the ranks' output are named differently there"
    "|leave it out: a run keeps the output of every rank, see `shanty logs`"
)
_WORKSPACE = "!only Open MPI copies programs|leave it out: a run copies its workspace to all hosts"
_PINNING = "!it lists cores in Open MPI's way|bind with `--bind-to core` and `--map-by slot:PE=N`"
_RANKFILE = "!only Open MPI reads rank files|use `--map-by slot`, `--map-by node` or a host file"
_INTEL_TOOL = "!it is a tool of Intel MPI|leave it out, or run with `--mpi intel`"
_FROM_A_FILE = (
    "!it takes options from a file, which is not translated|write them on the command line"
)
_PROGRAMS = (
    "!it takes the programs from a file, which is not translated"
    '|write them on the command line, with ":" between them'
)
_MCA_FILE = "!it is a file with settings of Open MPI|leave it out"
_IN_ORDER = "-hosts are taken in their order"
_RESTART = "!it does not start ranks again|start the run with --retries"

# How many ranks and where
_all("n np c", 1, "@count")
_all("npernode N", 1, "@per node")
_all("pernode", 0, "@per node")
_all("ppn perhost grr", 1, "@fill-host")
_all("rr", 0, "@fill-host")
_all("npersocket", 1, "@per socket")
_all("ppr", 1, "@ppr")
_all("map-by mapby", 1, "@map-by")
_all("rank-by rankby", 1, "@rank-by")
_all("bind-to bindto binding", 1, "@bind-to")
_all("bycore", 0, "@by core")
_all("bynode", 0, "@by node")
_all("byslot", 0, "@by slot")
_all("bind-to-core", 0, "@bind core")
_all("bind-to-socket", 0, "@bind socket")
_all("bind-to-none", 0, "@bind none")
_all("cpus-per-proc cpus-per-rank", 1, "@cores")
_all("oversubscribe", 0, "@oversubscribe yes")
_all("nooversubscribe", 0, "@oversubscribe no")
_ompi("use-hwthread-cpus", 0, "-a slot is whatever the host file says")
_ompi("cpu-set / cpu-list", 1, _PINNING)
_row("rankfile rf", 1, "=", "@rankfile", _RANKFILE, _RANKFILE)
_row("rankmap", 1, *("!only MPICH has rank maps|use `--map-by` or a host file",) * 2, "=",
     "!only MPICH has rank maps|use `-ppn` or a host file")  # fmt: skip
_row("nolocal skip-launch-node", 0, "=", "=", "=-skip-launch-node", "=-nolocal")
_row("order-nodes", 1, *(_IN_ORDER,) * 2, "=", _IN_ORDER)
_ompi("max-vm-size", 1, _OMPI_ONLY)
_row("usize", 1, _HYDRA_ONLY, _HYDRA_ONLY, "=", "=")
_row("membind", 1, *("-Open MPI places memory by the first touch",) * 2, "=",
     "-Intel MPI takes any value and ignores it")  # fmt: skip
_row("cpu-bind", 1, *("!it is written in Intel MPI's way|use `--bind-to` or `-bind-to`",) * 3, "=")
_row("gpus-per-proc / gpu-subdevs-per-proc", 1, *("-a run gives each rank its own GPU",) * 2, "=",
     "-a run gives each rank its own GPU")  # fmt: skip

# Hosts
_all("hostfile machinefile f default-hostfile", 1, "@hostfile")
_all("host H", 1, "@host")
_all("hosts hostlist machines machinelist", 1, "@hosts")
_row(
    "hosts-group", 1, *("!only Intel MPI has groups of hosts|name each host in `--host`",) * 3, "="
)
_all("iface", 1, "@iface")
_hydra("localhost", 1, _HYDRA_ONLY)
_row("disable-hostname-propagation enable-hostname-propagation", 0, _HYDRA_ONLY, _HYDRA_ONLY, "=",
     _HYDRA_ONLY)  # fmt: skip
_row("hybrid-hosts", 0, _HYDRA_ONLY, _HYDRA_ONLY, "=", _HYDRA_ONLY)

# Environment and folders
_all("x", 1, "@export")
_hydra("genv / env", 2, "@genv")
_hydra("genvlist / envlist", 1, "@envlist")
_hydra("genvall / envall", 0, "-a run passes its environment to every rank")
_hydra("genvnone / envnone", 0, "!Open MPI has no way to withhold the environment|leave it out")
_row("genvexcl / envexcl", 1,
     *("!only Intel MPI withholds single variables|unset them in the script",) * 3,
     "=")  # fmt: skip
_all("wdir wd", 1, "=")
_row("gwdir", 1, "=--wdir {}", "=--wdir {}", "=-wdir {}", "=")
_row("path", 1, "=", "@path-variable", "@path-variable", "=")
_ompi("prefix", 1, "-a run starts the same MPI on every host")
_ompi("noprefix", 0, "-it is about where Open MPI is installed")
_ompi("preload-binary", 0, _WORKSPACE)
_ompi("preload-files", 1, _WORKSPACE)
_row("set-cwd-to-session-dir", 0, "=", *("!only Open MPI 4.1 can|use `--wdir`",) * 3)
_row("tmpdir", 1, "=--mca orte_tmpdir_base {}", "=", "-MPICH takes no notice of it", "=")

# Settings of Open MPI
_all("mca omca / gmca gomca / prtemca gprtemca / pmixmca gpmixmca", 2, "@mca")
_row("tune", 1, "=", "=", _MCA_FILE, "@intel-tune")
_row("am amca", 1, "=", "=", _MCA_FILE, _MCA_FILE)
_row("personality", 1, "=", "=", _OMPI_ONLY, _OMPI_ONLY)

# Output
_RANK_TAGS = ("@tags --tag-output", "@tags --output tag", *("@tags -prepend-rank",) * 2)
_TIME_TAGS = (
    "@tags --timestamp-output",
    "@tags --output timestamp",
    "-MPICH has no times in its output",
    "@tags -prepend-timestamp",
)
_row("tag-output / prepend-rank l", 0, *_RANK_TAGS)
_row("timestamp-output / prepend-timestamp", 0, *_TIME_TAGS)
_row("prepend-pattern", 1, *_RANK_TAGS[:2], *("@tags -prepend-pattern {}",) * 2)
_row("output", 1, "@output", "@own-output", "@output", "@output")
_row("display", 1, "@display", "=", "@display", "@display")
_row("merge-stderr-to-stdout", 0, "=", "=--output merge-stderr-to-stdout",
     *("-Hydra's own tags do not tell them apart",) * 2)  # fmt: skip
_row("ordered-output", 0, *("-every line is written whole",) * 3, "=")
_row("output-from", 1, _FILES, _FILES, "=", _FILES)
_row("output-filename", 1, "=", "=--output file={}", _FILES, _FILES)
_row("output-directory", 1, "=--output-filename {}", "=--output dir={}", _FILES, _FILES)
_hydra("outfile-pattern outfile / errfile-pattern errfile", 1, _FILES)
_row("xml", 0, "=", "=--output xml", *("!only Open MPI writes XML|leave it out",) * 2)
_row("xml-file", 1, "=", *("!only Open MPI 4.1 writes an XML file|leave it out",) * 3)
_row("stream-buffering", 1, _OMPI_ONLY, "=", _OMPI_ONLY, _OMPI_ONLY)
_row("report-bindings", 0, "=", "=", "=", "-Intel MPI tells them with I_MPI_DEBUG=4")
_row("display-map display-diffable-map", 0, "=--display-map", "=--display map",
     "-MPICH cannot show it", "=-print-rank-map")  # fmt: skip
_row("display-devel-map", 0, "=", "=--display map-devel", "-MPICH cannot show it",
     "=-print-rank-map")  # fmt: skip
_row("display-allocation display-devel-allocation", 0, "=--display-allocation",
     "=--display allocation", *("-Hydra cannot show it",) * 2)  # fmt: skip
_row("display-topo", 0, "=", "=--display topo", *("-Hydra cannot show it",) * 2)
_row("print-rank-map", 0, "=--display-map", "=--display map", "-MPICH cannot show it", "=")
_hydra("print-all-exitcodes", 0, "-a run reports the exit code of every rank")
_row("silent-abort", 0, *("-a run reports the rank that failed first",) * 3, "=")
_row("prot", 0, *("-only Intel MPI can show it",) * 3, "=")
_all("verbose v debug", 0, "=")
_row("quiet q", 0, "=", *("-it is not needed",) * 3)
_row("debug-devel d", 0, "=", *("-it is about the inside of Open MPI 4.1",) * 3)
_ompi("debug-daemons", 0, "=-verbose")
_row("debug-daemons-file", 0, "=", *(_OMPI_ONLY,) * 3)
_ompi("leave-session-attached / show-progress", 0, _OMPI_ONLY)
_row("report-pid", 1, "=", "=", _OMPI_ONLY, _OMPI_ONLY)
_row("report-uri", 1, "=", "=", _ELSEWHERE, _ELSEWHERE)
_row("output-proctable / report-child-jobs-separately", 0, "=", *(_OMPI_ONLY,) * 3)

# Start, input and end
_ompi("allow-run-as-root", 0, "-Hydra runs as root without being asked")
_row("timeout", 1, "=", "=", "@timeout", "@timeout")
_ompi("report-state-on-timeout", 0, "-see `shanty ps`")
_ompi("get-stack-traces", 0, "-see `shanty stacks`")
_row("spawn-timeout", 1, _OMPI_ONLY, "=", _OMPI_ONLY, _OMPI_ONLY)
_row("stdin", 1, "@stdin", "@stdin", "@stdin-of-the-first", "=-s {}")
_all("s", 1, "@stdin-or-preload")
_row("with-ft", 1, "@no-ft", "@ft", "@no-ft", "@no-ft")
_row("enable-recovery", 0, "=", "=", "=-disable-auto-cleanup", "=-disable-auto-cleanup")
_row("disable-recovery", 0, "=", "=", "-it is what Hydra does", "-it is what Hydra does")
_row("disable-auto-cleanup dac", 0, "=--enable-recovery", "=--enable-recovery", "=", "=")
_row("enable-auto-cleanup", 0, *("-it is what Open MPI does",) * 2, "=", "=")
_ompi("continuous", 0, _RESTART)
_ompi("max-restarts", 1, _RESTART)
_row("runtime-options rtos", 1, "!only Open MPI 5 has it|leave it out", "=",
     *("!only Open MPI 5 has it|leave it out",) * 2)  # fmt: skip
_row("forward-signals", 1, _OMPI_ONLY, "=", _OMPI_ONLY, _OMPI_ONLY)
_row("initial-errhandler", 1, "!only Open MPI 5 has it|set it in the program", "=",
     *("!only Open MPI 5 has it|set it in the program",) * 2)  # fmt: skip
_row("memory-alloc-kinds", 1, "-only Open MPI 5 and MPICH have it", "=", "=",
     "-only Open MPI 5 and MPICH have it")  # fmt: skip
_row("pset", 1, "!only Open MPI 5 names sets of ranks|leave it out", "=",
     *("!only Open MPI 5 names sets of ranks|leave it out",) * 2)  # fmt: skip
_ompi("do-not-launch", 0, "!Hydra always launches|use `shanty run --dry-run`")

# How the launcher reaches the hosts
_hydra("launcher bootstrap rsh", 1, "@launcher")
_hydra("launcher-exec bootstrap-exec", 1, "@daemons agent")
_row("bootstrap-exec-args", 1, *("@daemons args",) * 2, *("@ssh-arguments",) * 2)
_hydra("rmk", 1, "-Open MPI finds the resource manager by itself")
_ompi("launch-agent", 1, _OMPI_ONLY)
_hydra("nameserver", 1, _ELSEWHERE)
_ompi("ompi-server", 1, _ELSEWHERE)
_row("hnp", 1, "=", *(_ELSEWHERE,) * 3)
_all("dvm", 0, _ELSEWHERE)
_all("report-events", 1, _ELSEWHERE)
_row("novm / do-not-resolve / use-regexp / enable-instant-on-support / fwd-mpirun-port", 0,
     "=", *(_OMPI_ONLY,) * 3)  # fmt: skip
_row("index-argv-by-rank", 0, "=", *("!only Open MPI 4.1 has it|use the rank's variable",) * 3)
_row("cartofile cf", 1, "=", *(_OMPI_ONLY,) * 3)
_hydra("demux", 1, _HYDRA_ONLY)
_hydra("enable-x / disable-x / profile", 0, _HYDRA_ONLY)
_row("topolib", 1, _HYDRA_ONLY, _HYDRA_ONLY, "=", _HYDRA_ONLY)
_row("pmi-port", 0, _HYDRA_ONLY, _HYDRA_ONLY, "=", _HYDRA_ONLY)
_row("noconf / pmi-aggregate / pmi-noaggregate", 0, *(_HYDRA_ONLY,) * 3, "=")
_row("branch-count / pmi-connect", 1, *(_HYDRA_ONLY,) * 3, "=")

# What is refused everywhere, or is a tool of one MPI
_all("configfile", 1, _FROM_A_FILE)
_all("app", 1, _PROGRAMS)
_all("xterm / debugger", 1, _DEBUGGER)
_all("gdb / gdba / gdb-ia / tv / tva / idb / stop-on-exec / stop-in-init", 0, _DEBUGGER)
_row("trace / aps / mps / check_mpi / ilp64 / trace-pt2pt / trace-collectives", 0,
     *(_INTEL_TOOL,) * 3, "=")  # fmt: skip
_row("gtool / gtoolfile", 1, *(_INTEL_TOOL,) * 3, "=")

# What asks for information and starts nothing
_all("version V", 0, "@ask --version")
_all("help h", 0, "@ask --help")
_row("info", 0, *("@ask --version",) * 2, *("@ask -info",) * 2)


def _index() -> Dict[str, Option]:
    index: Dict[str, Option] = {}
    rows = [(one, *row[1:]) for row in _ROWS for one in row[0].split(" / ")]
    for text, values, rules in rows:
        names = text.split()
        option = Option(names[0], values, dict(zip(_COLUMNS, rules)))
        for name in names:
            if name in index:
                raise AssertionError(f"two entries for the option {name}")
            index[name] = option
    return index


OPTIONS: Mapping[str, Option] = _index()
"""Each option by each of its names, which have no dashes."""
