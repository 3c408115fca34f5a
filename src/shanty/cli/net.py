"""`shanty net`: shows which networks join hosts, and how fast they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shanty.client.context import at_terminal, context, note
from shanty.client.terminal.options import completed, json_option, run_option
from shanty.client.terminal.table import ago, print_table

if TYPE_CHECKING:
    from shanty.launch.network.topology import Choice, Measured, Network, SurveyedHost

_MATRIX = 8  # hosts up to which every pair has a cell
_SLOWEST = 5  # pairs that are shown of more


@click.command()
@click.argument("target", metavar="[HOSTS]", required=False, shell_complete=completed("hosts"))
@run_option("hostfile")
@click.option("--ports", metavar="A-B", help="TCP ports that are open between the hosts [any].")
@click.option("--fresh", is_flag=True, help="Measure, even if it was done before.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Draw a picture too.",
)  # fmt: skip
@json_option
def net(
    target: str | None,
    hostfile: Path | None,
    ports: str | None,
    fresh: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Measure the networks that join hosts, and say which is taken.

    HOSTS is what `run --on` takes: a,b,user@10.0.0.3 or a group. Without it, the hosts of the
    workspace's shanty.toml.

    \b
    Examples:
      shanty net lab
      shanty net 10.0.0.2,10.0.0.3 --fresh --svg net.svg
    """
    from shanty.client.options import defaults
    from shanty.launch.network.selection import examine
    from shanty.launch.network.survey import chosen, survey
    from shanty.runtime.rundir import storage_errors

    here = context()
    files = str(hostfile) if hostfile else None
    if not (target or files):
        table = defaults(Path.cwd())
        target, files = table.get("on"), table.get("hostfile")
    allowed = _ports(ports) if ports else None
    hosts = chosen(target, files, here.home)
    say = here.progress
    say.quiet = as_json
    visited = survey(hosts, here.home, say, terminal=at_terminal())
    try:
        measured, choice = examine(visited, here.home, say, ports=allowed, fresh=fresh)
    finally:
        say("")
        for host in visited:
            host.client.close(0.5)
    if as_json:
        from shanty.launch.network.report import as_json as report

        print(json.dumps(report(visited, measured, choice)))
    else:
        _show(visited, measured, choice)
    if svg is not None:
        from shanty.launch.network.report import draw

        with storage_errors(svg, "--svg names a file in a folder that can be written"):
            svg.write_text(draw(measured, choice), encoding="utf-8")
        note(f"the picture is in {svg}")
    if len(visited) > 1 and not choice.route.rails:
        sys.exit(69)  # as a run would end that needs these networks


def _ports(text: str) -> tuple[int, int]:
    from shanty.runtime.errors import UsageError

    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 16):
        raise UsageError(f"invalid range of ports: {text!r}", fix="write it as 20000-20999")
    return int(first), int(last)


def _show(hosts: Sequence[SurveyedHost], measured: Measured, choice: Choice) -> None:
    from shanty.launch.network.report import interfaces, rate_text

    rows = []
    for host in hosts:
        for end in interfaces(host.survey):
            link = rate_text(end["speed"]) if end["speed"] else end["kind"]
            link = link if end["carries"] else "carries nothing"
            address = f"{end['address']}/{end['prefix']}"
            rows.append((host.name, end["interface"], address, link))
    print_table(("HOST", "INTERFACE", "ADDRESS", "LINK"), rows)
    for network in measured.networks:
        _show_network(measured, choice, network)
    for names, pairs in measured.together.items():
        least = min((sum(rates) for rates in pairs.values()), default=0.0)
        print(f"\n{' and '.join(names)} at the same time: {rate_text(least)} or more")
    print()
    if len(hosts) > 1:
        chosen = " and ".join(", ".join(rail.networks) for rail in choice.route.rails)
        print(f"a run takes {chosen or 'none'}: {choice.route.reason}")
    else:
        print("one host needs no network")
    for finding in choice.findings:
        where = f"{finding.host}: " if finding.host else ""
        print(f"{finding.level}: {where}{finding.what} [{finding.code}]")
        for word, text in (("seen", finding.evidence), ("fix", finding.fix)):
            if text:
                print(f"  {word}: {text}")
        if finding.command:
            print(f"       {finding.command}")
    if choice.age is not None:
        note(f"measured {ago(choice.age)} ago; --fresh measures again")
    elif choice.seconds:
        note(f"measured in {choice.seconds:.1f} s")


def _show_network(measured: Measured, choice: Choice, network: Network) -> None:
    verdict = choice.verdicts[network.name]
    print(f"\n{network.name}  {verdict.kind}: {verdict.text}")
    contacts = measured.contacts.get(network.name, {})
    if not contacts or (verdict.kind == "dead" and not any(one.ok for one in contacts.values())):
        return
    if len(network.ends) > _MATRIX:
        _show_slowest(measured, network)
        return
    names = [host for host in measured.hosts if host in network.ends]
    rows = [(name, *(_cell(measured, network, name, to) for to in names)) for name in names]
    print_table(("FROM", *(f"TO {name}" for name in names)), rows)


def _cell(measured: Measured, network: Network, source: str, target: str) -> str:
    from shanty.launch.network.report import SEEN, rate_text, time_text

    contact = measured.contacts[network.name].get((source, target))
    if source == target or contact is None:
        return ""
    pace = measured.paces.get(network.name, {}).get((source, target))
    if not contact.ok or pace is None:
        return SEEN[contact.kind]
    return f"{rate_text(pace.rate)}, {time_text(pace.latency)}"


def _show_slowest(measured: Measured, network: Network) -> None:
    from shanty.launch.network.report import SEEN

    contacts = measured.contacts[network.name]
    failed = list(measured.failed(network))
    paces = measured.paces.get(network.name, {})
    print(f"{len(contacts)} pairs tried, {len(failed)} failed, {len(paces)} measured")
    rows = [(*pair, SEEN[contacts[pair].kind]) for pair in failed[:_SLOWEST]]
    slowest = sorted(paces, key=lambda pair: paces[pair].rate)[:_SLOWEST]
    rows += [(*pair, _cell(measured, network, *pair)) for pair in slowest]
    if rows:
        print_table(("FROM", "TO", "FAILED, OR THE SLOWEST"), rows)
