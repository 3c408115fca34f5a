"""`shanty doctor`: reports what is wrong with hosts, and repairs it; also after a failed start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shanty.client import jobs
from shanty.client.context import Context, at_terminal, context, note
from shanty.client.options import typed
from shanty.client.terminal.errors import show_error
from shanty.client.terminal.findings import coloured, examined, hosts_of, lines
from shanty.client.terminal.old_flags import RunOptionsCommand
from shanty.client.terminal.options import completed, json_option, run_option
from shanty.client.terminal.table import print_table
from shanty.launch import interpreter
from shanty.launch.lock import exclusive_lock
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.rundir import storage_errors
from shanty.runtime.spec import JobSpec, Program

if TYPE_CHECKING:
    from shanty.launch.doctor.check import Report
    from shanty.launch.doctor.fixes import Repair, Repairer
    from shanty.launch.finding import Finding
    from shanty.launch.targets.base import CanExamine

_ANOTHER = UsageError("another `shanty doctor --fix` is running", fix="wait for it to end")
_HERE = "this machine"
_ROUNDS = 4  # a repair may uncover what the next one repairs


class DoctorCommand(RunOptionsCommand):
    """Has options of a run."""

    old: Mapping[str, str] = {"--memory": "--memory-per-rank", "--gpus": "--gpus-per-rank"}


@click.command(cls=DoctorCommand)
@click.argument("target", required=False, shell_complete=completed("hosts"))
@run_option("on", help="The same as TARGET.")
@run_option("hostfile")
@run_option("ranks", help="Ranks that are to run there.")
@run_option("ranks_per_host")
@run_option("memory_per_rank", help="Of each rank: 4G.")
@run_option("gpus_per_rank", help="Of each rank.")
@run_option("mpi")
@run_option("image", help="For a cluster: start two pods of it, and see.")
@run_option("uid", help="The user that they have.")
@run_option("python")
@run_option("packages", help="What a run is to do about hosts' Python packages.")
@run_option("env")
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: ask nothing, but for host keys.")
@click.option(
    "--accept-key", "accepted", metavar="SHA256:…", multiple=True,
    help="With --fix: a host key that you know to be right; may be given several times.",
)  # fmt: skip
@click.option("-v", "--verbose", "--notes", "verbose", is_flag=True, help="Notes too.")
@click.option("--codes", is_flag=True, help="List all codes and what they mean.")
@click.option("--elastic", is_flag=True, help="List what a run with --elastic outlives.")
@json_option
def doctor(
    target: str | None,
    fix: bool,
    yes: bool,
    accepted: tuple[str, ...],
    verbose: bool,
    codes: bool,
    elastic: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find what is wrong with this machine or hosts, and the fix.

    TARGET is a group or hosts, as for `shanty run --on`, and the network between them. Without
    one it is this machine, and the hosts that shanty.toml names.

    \b
    Examples:
      shanty doctor
      shanty doctor 10.0.0.2,10.0.0.3 -n 8 --memory-per-rank 4G
      shanty doctor lab --fix
    """
    if codes:
        from shanty.launch.finding import CODES

        if as_json:
            print(json.dumps(CODES))
        else:
            print_table(("CODE", "MEANING"), list(CODES.items()))
        return
    if elastic:
        _show_elastic(as_json=as_json)
        return
    on, python = given["on"], given["python"]
    if target and on:
        raise UsageError("TARGET and --on both name hosts", fix="give one of them")
    if (accepted or yes) and not fix:
        raise UsageError(
            f"{'--accept-key' if accepted else '--yes'} is a part of --fix", fix="give both"
        )
    for each in accepted:
        if not each.startswith("SHA256:"):
            raise UsageError(
                f"{each!r} is not the fingerprint of a host key",
                fix="it begins with SHA256: as in `ssh-keygen -lf /etc/ssh/ssh_host_….pub` there",
            )
    here = context()
    if python:
        interpreter.choose(python, Path.cwd(), here.environ)  # raises where it finds none
    given["on"] = target or on
    values = typed(given)
    values["env"] = jobs.environment(given["env"], (), os.environ)
    job = jobs.job_typed(Program(("true",)), Path.cwd(), values)
    from shanty.launch.targets.base import CanExamine

    place = here.targets.of(job)
    if isinstance(place, CanExamine):
        sys.exit(_examined_there(here, place, job, fix=fix, verbose=verbose, as_json=as_json))
    holds_ranks = not (given["on"] or given["hostfile"])
    report = examined(here, job, holds_ranks=holds_ranks)
    repairs: list[Repair] = []
    if fix:
        from shanty.launch.doctor.fixes import Repairer

        asking = (partial(_consents, yes), partial(_knows, accepted), note, here.progress)
        repairer = Repairer(job, hosts_of(here, job), here.home, here.environ, *asking)
        with storage_errors(here.home):
            here.home.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(here.home, _ANOTHER):
            report, repairs = _repaired(here, job, report, repairer, holds_ranks=holds_ranks)
    known = _versions(here, job) if holds_ranks else {}
    if as_json:
        more: dict[str, Any] = {"repairs": [each.to_json() for each in repairs]} if fix else {}
        print(json.dumps({**report.to_json(), **more, **({"versions": known} if known else {})}))
    else:
        if known:
            _show_versions(known)
        show(report, notes=verbose)
    sys.exit(0 if report.healthy else PrepareError.exit_code)


def _show_elastic(*, as_json: bool) -> None:
    from shanty.launch.targets.elastic_support import FRAMEWORKS, HEAD, PLACES

    if as_json:
        print(json.dumps([each._asdict() for each in (*PLACES, *FRAMEWORKS)]))
    else:
        print_table(HEAD, [*PLACES, ("",) * len(HEAD), *FRAMEWORKS])


def _examined_there(
    here: Context, target: CanExamine, job: JobSpec, *, fix: bool, verbose: bool, as_json: bool
) -> int:
    """Have a target examine itself, and with `fix` remove what runs have left there."""
    here.progress.quiet = not sys.stderr.isatty()
    removed = target.sweep(job) if fix else []
    report = target.examine(job)
    if as_json:
        print(json.dumps({**report.to_json(), **({"removed": removed} if fix else {})}))
    else:
        for name in removed:
            note(f"removed the Job {name}")
        show(report, notes=verbose)
    return 0 if report.healthy else PrepareError.exit_code


def _versions(here: Context, job: JobSpec) -> dict[str, Any]:
    from shanty.launch.doctor.versions import versions

    try:
        return versions(job, here.home, here.environ)
    except PrepareError as error:  # its Python does not run
        show_error(error)
        return {}


def _show_versions(known: Mapping[str, Any]) -> None:
    """Print what a run on this machine is made of."""
    python = known["python"]
    packages = ", ".join(f"{name} {version}" for name, version in python["packages"].items())
    titles = [
        f"{each['title']} {each['version']}" + (" (taken)" if each["taken"] else "")
        for each in known["mpis"]
    ]
    print(f"shanty     {known['shanty']}")
    print(f"Python     {python['version']} ({python['path']})")
    print(f"packages   {packages or 'none of those that scripts are written with'}")
    print(f"MPI        {', '.join(titles) or 'none'}\n")


def show(report: Report, *, notes: bool) -> None:
    """Print a report: host by host, the worst first, and a line that sums up."""
    from shanty.launch.finding import Level

    by_host: dict[str, list[Finding]] = {}
    for each in report.findings:
        if notes or each.level is not Level.NOTE:
            by_host.setdefault(each.host, []).append(each)
    for host, found in by_host.items():
        print(coloured(host or _HERE, 1, sys.stdout))
        for each in found:
            print(*lines(each, sys.stdout), sep="\n")
        print()
    well = [host or _HERE for host in report.hosts if host not in by_host]
    if well:
        print(f"{coloured('ok', 32, sys.stdout)}  {', '.join(well)}")
    for text in report.unfinished:
        print(f"{coloured('?', 33, sys.stdout)}   not checked: {text}")
    counts = {level: sum(each.level is level for each in report.findings) for level in Level}
    parts = [f"{number} {level}{'s' * (number != 1)}" for level, number in counts.items() if number]
    count = len(report.hosts)
    where = "1 host" if count == 1 else f"{count} hosts"
    if count == 1 and well == [_HERE] and not report.unfinished:
        where = "all good"
    hidden = " (-v shows the notes)" if counts[Level.NOTE] and not notes else ""
    print(f"{where}: {', '.join(parts) or 'nothing found'}{hidden}; {report.seconds:.1f} s")


def _repaired(
    here: Context, job: JobSpec, report: Report, repairer: Repairer, *, holds_ranks: bool
) -> tuple[Report, list[Repair]]:
    """Repair, and examine again, until nothing is left that can be repaired; what was done."""
    done: list[Repair] = []
    for _ in range(_ROUNDS):
        repairs = repairer.repair(report)
        done += repairs
        for each in repairs:
            if each.error is not None:
                show_error(each.error)
        if not any(each.error is None for each in repairs):
            break
        report = examined(here, job, holds_ranks=holds_ranks)
    if not done:
        note("nothing could be repaired from here")
    return report, done


def _consents(unasked: bool, question: str) -> bool:
    """Return the answer to a question: that of --yes, of the person at the terminal, or a no."""
    if unasked:
        note(question)
    return unasked or _confirmed(question, "--yes does it")


def _knows(accepted: Collection[str], host: str, shown: str) -> bool:
    """Return true for a host's key that was given, or that a person who sees it knows.

    --yes does not count here: only a person who has seen a key can know whose it is.
    """
    fingerprint = shown.split()[0]
    return fingerprint in accepted or _confirmed(
        f"{host} shows the host key {shown}. Is that the right one",
        f"if it is the right one, --accept-key {fingerprint}",
    )


def _confirmed(question: str, otherwise: str) -> bool:
    """Ask the person at the terminal; without a terminal the answer is no."""
    if not at_terminal():
        note(f"{question}\n  not done, since no terminal is connected to ask at; {otherwise}")
        return False
    return click.confirm(f"shanty: {question}?", err=True)
