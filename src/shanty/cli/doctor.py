"""`shanty doctor`: says what is wrong with hosts, and cures it; also after a failed start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from shanty.cli import jobs
from shanty.cli.context import Context, at_terminal, context, note, show_error
from shanty.cli.options import OPTIONS, completed, json_option, typed
from shanty.cli.table import print_table
from shanty.launch import interpreter
from shanty.launch.lock import exclusive_lock
from shanty.runtime.errors import LaunchError, PrepareError, ShantyError, UsageError, WorldError
from shanty.runtime.rundir import storage_errors
from shanty.runtime.spec import JobSpec, Program, State, Status

if TYPE_CHECKING:
    from shanty.launch.doctor.check import Report
    from shanty.launch.doctor.fixes import Repair, Repairer
    from shanty.launch.finding import Finding
    from shanty.launch.host import Host

_ANOTHER = UsageError("another `shanty doctor --fix` is at work", fix="wait for it to end")
_HERE = "this machine"
_ROUNDS = 4  # what one repair uncovers is repaired in the next
_LIMIT_AFTER_FAILURE = 9.0  # seconds: somebody waits who has seen the error already
_LAUNCH_FAILED = (LaunchError.exit_code, WorldError.exit_code)


@click.command()
@click.argument("target", required=False, shell_complete=completed("hosts"))
@OPTIONS["on"].click_option(help="The same as TARGET.")
@OPTIONS["hostfile"].click_option()
@OPTIONS["ranks"].click_option(help="Ranks that are to run there.")
@OPTIONS["ranks_per_host"].click_option()
@OPTIONS["memory_per_rank"].click_option(
    flags="--memory --memory-per-rank", help="Of each rank: 4G."
)
@OPTIONS["gpus_per_rank"].click_option(flags="--gpus --gpus-per-rank", help="Of each rank.")
@OPTIONS["mpi"].click_option()
@OPTIONS["image"].click_option(help="For a cluster: start two pods of it, and see.")
@OPTIONS["uid"].click_option(help="The user that they have.")
@OPTIONS["python"].click_option()
@OPTIONS["environment"].click_option(help="What a run is to do about hosts' Python packages.")
@OPTIONS["env"].click_option()
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: ask nothing, but for host keys.")
@click.option(
    "--accept-key", "accepted", metavar="SHA256:…", multiple=True,
    help="With --fix: a host key that you know to be right; may be given several times.",
)  # fmt: skip
@click.option("-v", "--verbose", "--notes", "verbose", is_flag=True, help="Notes too.")
@click.option("--codes", is_flag=True, help="List all codes and what they mean.")
@json_option
def doctor(
    target: str | None,
    fix: bool,
    yes: bool,
    accepted: tuple[str, ...],
    verbose: bool,
    codes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Find what is wrong with this machine or hosts, and the cure.

    TARGET is a group or hosts, as for `shanty run --on`, and the network between them. Without
    one it is this machine, and the hosts that shanty.toml names.

    \b
    Examples:
      shanty doctor
      shanty doctor 10.0.0.2,10.0.0.3 -n 8 --memory 4G
      shanty doctor lab --fix
    """
    if codes:
        from shanty.launch.finding import CODES

        if as_json:
            print(json.dumps(CODES))
        else:
            print_table(("CODE", "MEANING"), list(CODES.items()))
        return
    on, python = given["on"], given["python"]
    if target and on:
        raise UsageError("TARGET and --on both say which hosts", fix="give one")
    if (accepted or yes) and not fix:
        raise UsageError(
            f"{'--accept-key' if accepted else '--yes'} is a part of --fix", fix="give both"
        )
    for each in accepted:
        if not each.startswith("SHA256:"):
            raise UsageError(
                f"{each!r} is no fingerprint of a host key",
                fix="it begins with SHA256: as in `ssh-keygen -lf /etc/ssh/ssh_host_….pub` there",
            )
    here = context()
    if python:
        interpreter.choose(python, Path.cwd(), here.environ)  # says where there is none
    given["on"] = target or on
    values = typed(given)
    values["env"] = jobs.environment(given["env"], (), os.environ)
    job = jobs.make_job(Program(("true",)), Path.cwd(), values)
    if here.targets.is_kubernetes(job):
        sys.exit(_cluster(here, job, fix=fix, verbose=verbose, as_json=as_json))
    holds_ranks = not (given["on"] or given["hostfile"])
    report = examined(here, job, holds_ranks=holds_ranks)
    repairs: list[Repair] = []
    if fix:
        from shanty.launch.doctor.fixes import Repairer

        asking = (partial(_consents, yes), partial(_knows, accepted), note, here.progress)
        repairer = Repairer(job, _hosts_of(here, job), here.home, here.environ, *asking)
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


def _cluster(here: Context, job: JobSpec, *, fix: bool, verbose: bool, as_json: bool) -> int:
    """Examine a cluster of Kubernetes, and with `fix` remove what runs have left there."""
    from shanty.launch.doctor import kubernetes

    say = here.progress if sys.stderr.isatty() else lambda _text: None
    removed = kubernetes.sweep(job, here.home, here.environ) if fix else []
    report = kubernetes.examine(job, here.home, here.environ, say)
    if as_json:
        print(json.dumps({**report.to_json(), **({"removed": removed} if fix else {})}))
    else:
        for name in removed:
            note(f"removed the Job {name}")
        show(report, notes=verbose)
    return 0 if report.healthy else PrepareError.exit_code


def examined(
    here: Context, job: JobSpec, *, holds_ranks: bool, limit: float | None = None
) -> Report:
    """Examine the hosts of a job within `limit` seconds, and tell how far it is."""
    from shanty.launch.doctor.check import LIMIT, examine

    say = here.progress if sys.stderr.isatty() else lambda _text: None
    hosts, limit = _hosts_of(here, job), limit or LIMIT
    return examine(job, hosts, here.home, here.environ, say, holds_ranks=holds_ranks, limit=limit)


def _hosts_of(here: Context, job: JobSpec) -> tuple[Host, ...]:
    from shanty.launch.network.survey import chosen

    return chosen(job.on, job.hostfile, here.home) if job.on or job.hostfile else ()


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
        print(_coloured(host or _HERE, 1, sys.stdout))
        for each in found:
            print(*lines(each, sys.stdout), sep="\n")
        print()
    well = [host or _HERE for host in report.hosts if host not in by_host]
    if well:
        print(f"{_coloured('ok', 32, sys.stdout)}  {', '.join(well)}")
    for text in report.unfinished:
        print(f"{_coloured('?', 33, sys.stdout)}   not checked: {text}")
    counts = {level: sum(each.level is level for each in report.findings) for level in Level}
    parts = [f"{number} {level}{'s' * (number != 1)}" for level, number in counts.items() if number]
    count = len(report.hosts)
    where = "1 host" if count == 1 else f"{count} hosts"
    if count == 1 and well == [_HERE] and not report.unfinished:
        where = "all good"
    hidden = " (-v shows the notes)" if counts[Level.NOTE] and not notes else ""
    print(f"{where}: {', '.join(parts) or 'nothing found'}{hidden}; {report.seconds:.1f} s")


def lines(finding: Finding, out: TextIO) -> list[str]:
    """Return a finding as it is printed to `out`."""
    colour = {"error": 31, "warning": 33}.get(finding.level.value, 36)
    level = _coloured(finding.level.value, colour, out)
    found = [f"  {level} [{finding.code}] {finding.what}"]
    if finding.evidence:
        found.append(f"    seen: {finding.evidence}")
    if finding.fix:
        found.append(f"    fix:  {finding.fix}" + (" (--fix does it)" if finding.fixable else ""))
    if finding.command:
        found.append(f"      $ {finding.command}")
    return found


def _coloured(text: str, code: int, out: TextIO) -> str:
    return f"\033[{code}m{text}\033[0m" if out.isatty() else text


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
        note("there is nothing that could be repaired from here")
    return report, done


def _consents(unasked: bool, question: str) -> bool:
    """Return the answer to a question: that of --yes, of the person at the terminal, or a no."""
    if unasked:
        note(question)
    return unasked or _confirmed(question, "--yes does it")


def _knows(accepted: Collection[str], host: str, shown: str) -> bool:
    """Return true for a host's key that was given, or that a person who sees it knows.

    --yes does not count here: whoever has not seen a key cannot know whose it is.
    """
    fingerprint = shown.split()[0]
    return fingerprint in accepted or _confirmed(
        f"{host} shows the host key {shown}. Is that the right one",
        f"if it is the right one, --accept-key {fingerprint}",
    )


def _confirmed(question: str, otherwise: str) -> bool:
    """Ask the person at the terminal; the answer is no where there is none."""
    if not at_terminal():
        note(f"{question}\n  not done: there is no terminal to ask at; {otherwise}")
        return False
    return click.confirm(f"shanty: {question}?", err=True)


# -------------------------------------------------------- for a run that could not be started


def is_a_launch(status: Status) -> bool:
    """Return true for a run that failed by no rank's own doing."""
    failure = status.failure
    ours = status.exit_code in _LAUNCH_FAILED and status.state in (State.FAILED, State.LOST)
    return ours and (failure is None or failure.rank is None)


def findings(here: Context, job: JobSpec) -> list[Finding]:
    """Examine the hosts of a job; all that is more than a note, or nothing where that fails."""
    from shanty.launch.finding import Level

    away = bool(job.on or job.hostfile)
    try:
        report = examined(here, job, holds_ranks=not away, limit=_LIMIT_AFTER_FAILURE)
    except ShantyError:
        return []  # what keeps the doctor out has been said by the error before
    return [each for each in report.findings if each.level is not Level.NOTE]


def explain(here: Context, job: JobSpec, said: str) -> None:
    """Print what the doctor finds, but what `said`, the failure in words, has named already."""
    here.progress("")
    found = [f for f in findings(here, job) if f"[{f.code}]" not in said or f.host not in said]
    if found:
        print("shanty: doctor finds:", file=sys.stderr)
    for each in found:
        shown = replace(each, what=f"{each.host}: {each.what}" if each.host else each.what)
        print(*lines(shown, sys.stderr), sep="\n", file=sys.stderr)
