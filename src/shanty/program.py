"""The program `shanty`: which verbs there are, and where their commands are."""

from __future__ import annotations

from shanty import _interrupt
from shanty.cli import app as cli
from shanty.cli.app import app, main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

    import click

__all__ = ["GROUPS", "VERBS", "app", "main", "program"]

# The verbs by groups, in the order in which people meet them, and the first sentence of the help of
# each, so that `shanty --help` loads none of them.
GROUPS = {
    "Run": {
        "run": "Run a script, module, program or mpirun line as ranks.",
        "rerun": "Run a job again, as a new run.",
        "ps": "List the runs, the newest last.",
        "show": "Show one run: what it is, how it stands, where its files are.",
        "logs": "Print the output of a run.",
        "stop": "Stop runs: SIGTERM to the ranks, then SIGKILL.",
        "signal": "Send a signal to the ranks that have a handler for it.",
        "rm": "Delete ended runs, their logs and their artifacts.",
        "prune": "Delete the oldest ended runs beyond a number.",
    },
    "Diagnose": {
        "stacks": "Show where every rank stands: its stack, and its MPI call.",
        "doctor": "Find what is wrong with this machine or hosts, and the fix.",
        "net": "Measure the networks that join hosts, and say which is taken.",
    },
    "Places to run": {
        "hosts": "Keep groups of hosts under a name, for --on NAME.",
        "machines": "Name machines of one kind, whose runs wait in a queue.",
        "lab": "Make virtual hosts in this machine (Linux).",
        "k8s": "Say what runs on Kubernetes need of a cluster.",
    },
    "Setup": {
        "mpi": "List, install and remove MPIs.",
        "image": "Make container images of your environment.",
        "completion": "Print what a shell needs to complete shanty's words.",
    },
    "Dashboard": {
        "ui": "Show runs in the browser.",
        "serve": "Serve the dashboard to several people.",
    },
    # Only in --help-all.
    "Compatibility": {
        "horovodrun": "Run a command as horovodrun would, with its options.",
        "dmlc-submit": "Run a command as DMLC's dmlc-submit would, with its options.",
        "flyte": "Run Flyte's workflows, their MPI tasks on ranks.",
        "experiments": "Run experiments, by Gradient's command line.",
        "create": "Create jobs, by Clusterone's command line.",
    },
}
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}


def program() -> NoReturn:
    """Run the command line, then end the process."""
    _interrupt.restore()
    cli.program()


def _command(verb: str) -> click.Command:
    """Import and return the command of a verb: the others cost time, and are not needed.

    It has the verb's name, with _ for a dash.
    """
    module: ModuleType
    match verb:
        case "run" | "rerun":
            from shanty.cli import run as module
        case "ps" | "logs" | "stop" | "signal" | "stacks" | "rm" | "prune":
            from shanty.cli import runs as module
        case "show":
            from shanty.cli import show as module
        case "doctor":
            from shanty.cli import doctor as module
        case "net":
            from shanty.cli import net as module
        case "hosts":
            from shanty.cli import hosts as module
        case "machines":
            from shanty.cli import machines as module
        case "lab":
            from shanty.cli import lab as module
        case "mpi":
            from shanty.cli import mpi as module
        case "image":
            from shanty.cli import image as module
        case "k8s":
            from shanty.cli import k8s as module
        case "ui" | "serve":
            from shanty.dashboard import command as module
        case "experiments":
            from shanty.integrations.gradient import command as module
        case "create":
            from shanty.integrations.clusterone import command as module
        case "horovodrun":
            from shanty.cli import horovodrun as module
        case "dmlc-submit":
            from shanty.cli import dmlc_submit as module
        case "flyte":
            from shanty.integrations.flyte import command as module
        case "completion":
            from shanty.cli import completion as module
        case _:
            raise KeyError(verb)
    found: click.Command = getattr(module, verb.replace("-", "_"))
    return found


def _second_word(verb: str, word: str) -> click.Command | None:
    """Return the command of what Clusterone's users type besides `create job`: `get jobs`."""
    if word not in ("job", "jobs", "events") or verb not in ("start", "stop", "rm", "get"):
        return None
    from shanty.integrations.clusterone import command as clusterone

    group = clusterone.ALSO[verb]
    return group if word in group.commands else None


app.use(GROUPS, _command, _second_word)
