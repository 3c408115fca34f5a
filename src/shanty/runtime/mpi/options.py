"""Lists the options of the launchers that shanty translates, and what each MPI has for them.

Taken from `mpirun --help` of Open MPI 4.1.8, the sources of PRRTE 3.0 and MPICH 5.0, Intel's
`mpiexec.hydra -help`, and from trying each of them on all four.

A rule says what to write instead:

    =             the same option, in the dashes of that MPI
    =WORDS        these words; {} stands for the option's value
    -REASON       nothing, and a note that gives the reason
    !REASON|FIX   it is refused
    @CODE         what `Placement` or the translator of that family does for the code
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping

_FAMILIES = {"openmpi4": "openmpi", "openmpi5": "openmpi", "mpich": "hydra", "intel": "hydra"}


@dataclass(frozen=True)
class Option:
    """One option: its usual name, the number of values that follow it, and its translations."""

    name: str
    values: int
    rules: Mapping[str, str]


OPTIONS: Dict[str, Option] = {}
"""Each option by each of its names, which have no dashes."""


def _row(names: str, values: int, rule: str, **others: str) -> None:
    """Adds options, with " / " between those for which all is the same.

    `rule` is that of all MPIs but of `others`, which may be an MPI or both of a family.
    """
    rules = {
        flavour: others.get(flavour) or others.get(family, rule)
        for flavour, family in _FAMILIES.items()
    }
    for one in names.split(" / "):
        option = Option(one.split()[0], values, rules)
        assert OPTIONS.keys().isdisjoint(one.split()), one
        OPTIONS.update(dict.fromkeys(one.split(), option))


_OMPI_ONLY = "-it is about the inside of Open MPI"
_HYDRA_ONLY = "-it is about the inside of Hydra"
_DEBUGGER = (
    "!a debugger needs a terminal of its own, which the ranks of a run do not have"
    "|see where the ranks are with `shanty stacks`"
)
_ELSEWHERE = "!it needs a server or a tool outside the run|leave it out"
_FILES = (
    "!a run keeps the output of every rank in a file of its own"
    "|leave it out and see `shanty logs`, or write --output-filename FOLDER"
)
_WORKSPACE = (
    "!a run starts each program by one of its own|leave it out: a run copies its workspace to hosts"
)
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
_row("n np c", 1, "@count")
_row("npernode N", 1, "@per node")
_row("pernode", 0, "@per node")
_row("ppn perhost grr", 1, "@fill-host")
_row("rr", 0, "@fill-host")
_row("npersocket", 1, "@per socket")
_row("ppr", 1, "@map-by ppr:{}")
_row("map-by mapby", 1, "@map-by")
_row("rank-by rankby", 1, "@rank-by")
_row("bind-to bindto binding", 1, "@bind-to")
_row("bycore", 0, "@map-by core")
_row("bynode", 0, "@map-by node")
_row("byslot", 0, "@map-by slot")
_row("bind-to-core", 0, "@bind-to core")
_row("bind-to-socket", 0, "@bind-to socket")
_row("bind-to-none", 0, "@bind-to none")
_row("cpus-per-proc cpus-per-rank", 1, "@cores")
_row("oversubscribe", 0, "@oversubscribe yes")
_row("nooversubscribe", 0, "@oversubscribe no")
_row("use-hwthread-cpus", 0, "=", hydra="-a slot is whatever the host file says")
_row("cpu-set / cpu-list", 1, "=", hydra=_PINNING)
_row("rankfile rf", 1, _RANKFILE, openmpi4="=", openmpi5="@rankfile")
_row("rankmap", 1, "!only MPICH has rank maps|use `--map-by` or a host file", mpich="=",
     intel="!only MPICH has rank maps|use `-ppn` or a host file")  # fmt: skip
_row("nolocal skip-launch-node", 0, "=", mpich="=-skip-launch-node", intel="=-nolocal")
_row("order-nodes", 1, _IN_ORDER, mpich="=")
_row("membind", 1, "-Open MPI places memory by the first touch", mpich="=",
     intel="-Intel MPI takes any value and ignores it")  # fmt: skip
_row("cpu-bind", 1, "!it is written in Intel MPI's way|use `--bind-to` or `-bind-to`", intel="=")
_row("gpus-per-proc / gpu-subdevs-per-proc", 1, "-a run gives each rank its own GPU", mpich="=")

# Hosts
_row("hostfile machinefile f default-hostfile", 1, "@hostfile")
_row("host H", 1, "@host")
_row("hosts hostlist machines machinelist", 1, "@hosts")
_row("hosts-group", 1, "!only Intel MPI has groups of hosts|name each host in `--host`", intel="=")
_row("iface", 1, "@iface")

# Environment and folders
_row("x", 1, "@export")
_row("genv / env", 2, "=-x {}", hydra="=")
_row("genvlist / envlist", 1, "@envlist")
_row("genvall / envall", 0, "-a run passes its environment to every rank")
_row("genvnone / envnone", 0, "!a run passes its environment to every rank|leave it out")
_row("genvexcl", 1, "!a run passes its environment to every rank|unset it in the script")
_row("envexcl", 1, "!only Intel MPI withholds single variables|unset them in the script",
     intel="=")  # fmt: skip
_row("wdir wd", 1, "=")
_row("gwdir", 1, "=--wdir {}", mpich="=-wdir {}", intel="=")
_row("path", 1, "=", openmpi5="@path-variable", mpich="@path-variable")
_row("prefix", 1, "=", hydra="-a run starts the same MPI on every host")
_row("noprefix", 0, "=", hydra="-it is about where Open MPI is installed")
_row("preload-binary", 0, _WORKSPACE)
_row("preload-files", 1, "=", hydra=_WORKSPACE)
_row("set-cwd-to-session-dir", 0, "!only Open MPI 4.1 can|use `--wdir`", openmpi4="=")
_row("tmpdir", 1, "=", openmpi4="=--mca orte_tmpdir_base {}", mpich="-MPICH takes no notice of it")

# Settings of Open MPI
_row("mca omca / gmca gomca / prtemca gprtemca / pmixmca gpmixmca", 2, "@mca")
_row("tune", 1, "=", mpich=_MCA_FILE, intel="@intel-tune")
_row("am amca", 1, "=", hydra=_MCA_FILE)

# Output
_row("tag-output / prepend-rank l", 0, "@tags -prepend-rank", openmpi4="@tags --tag-output",
     openmpi5="@tags --output tag")  # fmt: skip
_row("timestamp-output / prepend-timestamp", 0, "@tags --timestamp-output",
     openmpi5="@tags --output timestamp", mpich="-MPICH has no times in its output",
     intel="@tags -prepend-timestamp")  # fmt: skip
_row("prepend-pattern", 1, "@tags -prepend-pattern {}", openmpi4="@tags --tag-output",
     openmpi5="@tags --output tag")  # fmt: skip
_row("output", 1, "@output", openmpi5="@output known")
_row("display", 1, "@display", openmpi5="=")
_row("merge-stderr-to-stdout", 0, "-a run keeps both in one log, each in its order")
_row("ordered-output", 0, "-every line is written whole", intel="=")
_row("output-filename / output-directory", 1, "@output-files")
_row("output-from / outfile-pattern outfile / errfile-pattern errfile", 1, _FILES)
_row("xml", 0, "!a run passes on the lines of its ranks as they are|leave it out")
_row("xml-file", 1, "!a run passes on the lines of its ranks as they are|leave it out")
_row("report-bindings", 0, "=", intel="-Intel MPI shows them with I_MPI_DEBUG=4")
_row("display-map display-diffable-map", 0, "=--display-map", openmpi5="=--display map",
     mpich="-MPICH cannot show it", intel="=-print-rank-map")  # fmt: skip
_row("display-devel-map", 0, "=", openmpi5="=--display map-devel", mpich="-MPICH cannot show it",
     intel="=-print-rank-map")  # fmt: skip
_row("display-allocation display-devel-allocation", 0, "-Hydra cannot show it",
     openmpi4="=--display-allocation", openmpi5="=--display allocation")  # fmt: skip
_row("display-topo", 0, "-Hydra cannot show it", openmpi4="=", openmpi5="=--display topo")
_row("print-rank-map", 0, "=--display-map", openmpi5="=--display map",
     mpich="-MPICH cannot show it", intel="=")  # fmt: skip
_row("print-all-exitcodes", 0, "-a run reports the exit code of every rank", hydra="=")
_row("silent-abort", 0, "-a run reports the rank that failed first", intel="=")
_row("prot", 0, "-only Intel MPI can show it", intel="=")
_row("verbose v debug", 0, "=")
_row("quiet q", 0, "-it is not needed", openmpi4="=")
_row("debug-devel d", 0, "-it is about the inside of Open MPI 4.1", openmpi4="=")
_row("debug-daemons", 0, "=", hydra="=-verbose")
_row("report-uri", 1, "=", hydra=_ELSEWHERE)

# Start, input and end
_row("allow-run-as-root", 0, "=", hydra="-Hydra runs as root without being asked")
_row("timeout", 1, "=", hydra="@timeout")
_row("report-state-on-timeout", 0, "=", hydra="-see `shanty ps`")
_row("get-stack-traces", 0, "=", hydra="-see `shanty stacks`")
_row("stdin", 1, "@stdin")
_row("s", 1, "@stdin-or-preload")
_row("with-ft", 1, "@ft", openmpi5="@ft known")
_row("enable-recovery", 0, "=", hydra="=-disable-auto-cleanup")
_row("disable-recovery", 0, "=", hydra="-it is what Hydra does")
_row("disable-auto-cleanup dac", 0, "=--enable-recovery", hydra="=")
_row("enable-auto-cleanup", 0, "-it is what Open MPI does", hydra="=")
_row("continuous", 0, "=", hydra=_RESTART)
_row("max-restarts", 1, "=", hydra=_RESTART)
_row("runtime-options rtos", 1, "!only Open MPI 5 has it|leave it out", openmpi5="=")
_row("initial-errhandler", 1, "!only Open MPI 5 has it|set it in the program", openmpi5="=")
_row("memory-alloc-kinds", 1, "-only Open MPI 5 and MPICH have it", openmpi5="=", mpich="=")
_row("pset", 1, "!only Open MPI 5 names sets of ranks|leave it out", openmpi5="=")
_row("do-not-launch", 0, "=", hydra="!Hydra always launches|use `shanty run --dry-run`")

# How the launcher reaches the hosts
_row("launcher bootstrap rsh", 1, "@launcher", hydra="=")
_row("launcher-exec bootstrap-exec", 1, "@daemons agent", hydra="=")
_row("bootstrap-exec-args", 1, "@daemons args", hydra="@ssh-arguments")
_row("rmk", 1, "-Open MPI finds the resource manager by itself", hydra="=")
_row("nameserver", 1, _ELSEWHERE, hydra="=")
_row("ompi-server", 1, "=", hydra=_ELSEWHERE)
_row("hnp", 1, _ELSEWHERE, openmpi4="=")
_row("dvm", 0, _ELSEWHERE)
_row("report-events", 1, _ELSEWHERE)
_row("index-argv-by-rank", 0, "!only Open MPI 4.1 has it|use the rank's variable", openmpi4="=")

# The inside of Open MPI or of Hydra
_row("max-vm-size / personality / report-pid / launch-agent", 1, "=", hydra=_OMPI_ONLY)
_row("leave-session-attached / show-progress", 0, "=", hydra=_OMPI_ONLY)
_row("novm / do-not-resolve / use-regexp / enable-instant-on-support / fwd-mpirun-port"
     " / debug-daemons-file / output-proctable / report-child-jobs-separately", 0,
     _OMPI_ONLY, openmpi4="=")  # fmt: skip
_row("cartofile cf", 1, _OMPI_ONLY, openmpi4="=")
_row("stream-buffering / spawn-timeout / forward-signals", 1, _OMPI_ONLY, openmpi5="=")
_row("usize / localhost / demux", 1, _HYDRA_ONLY, hydra="=")
_row("enable-x / disable-x / profile", 0, _HYDRA_ONLY, hydra="=")
_row("disable-hostname-propagation enable-hostname-propagation / hybrid-hosts / pmi-port", 0,
     _HYDRA_ONLY, mpich="=")  # fmt: skip
_row("topolib", 1, _HYDRA_ONLY, mpich="=")
_row("noconf / pmi-aggregate / pmi-noaggregate", 0, _HYDRA_ONLY, intel="=")
_row("branch-count / pmi-connect", 1, _HYDRA_ONLY, intel="=")

# What is refused everywhere, or is a tool of one MPI
_row("configfile", 1, _FROM_A_FILE)
_row("app", 1, _PROGRAMS)
_row("xterm / debugger", 1, _DEBUGGER)
_row("gdb / gdba / gdb-ia / tv / tva / idb / stop-on-exec / stop-in-init", 0, _DEBUGGER)
_row("trace / aps / mps / check_mpi / ilp64 / trace-pt2pt / trace-collectives", 0, _INTEL_TOOL,
     intel="=")  # fmt: skip
_row("gtool / gtoolfile", 1, _INTEL_TOOL, intel="=")

# What asks for information and starts nothing
_row("version V", 0, "@ask --version")
_row("help h", 0, "@ask --help")
_row("info", 0, "@ask --version", hydra="@ask -info")
