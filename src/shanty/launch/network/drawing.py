"""Draws hosts and their networks as SVG."""

from __future__ import annotations

import statistics
from xml.sax.saxutils import escape

from shanty.launch.network.report import rate_text, time_text
from shanty.launch.network.results import Choice, Measured
from shanty.launch.network.topology import Network

_COLOURS = {"chosen": "#0b5fa5", "joins": "#2b7a2b", "slow": "#b3470c"}
_BROKEN = "#9a9a9a"
_LEFT, _HOST, _BOX, _TOP, _LINE = 24, 132, 112, 24, 62
_CHARACTER = 7.2  # the width of one, about
_MOST = 24  # hosts that are drawn one by one


def draw(measured: Measured, choice: Choice) -> str:
    """Draws the hosts in a row, below them a line for each network to the hosts that have it.

    What the run takes is drawn strongly; what does not join its hosts is dashed.
    """
    hosts = list(measured.hosts[:_MOST])
    across = _LEFT + len(hosts) * _HOST
    captions = {network.name: _captions(measured, choice, network) for network in measured.networks}
    longest = max((len(line) for lines in captions.values() for line in lines), default=0)
    width = int(across + 16 + max(longest * _CHARACTER, 80))
    height = _TOP + 44 + _LINE * len(measured.networks) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title" '
        'font-family="system-ui, \'DejaVu Sans\', Helvetica, Arial, sans-serif" font-size="13">',
        '<title id="title">The networks between '
        + escape(", ".join(hosts[:6]) + (" and others" if len(measured.hosts) > 6 else ""))
        + "</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#fbfaf7"/>',
    ]
    # the last network first, so that the lines of the first ones lie above
    rows = len(measured.networks)
    for row in reversed(range(rows)):
        network = measured.networks[row]
        level = _TOP + 44 + _LINE * (row + 1) - 14
        parts += _network(network, hosts, choice, captions[network.name], level, across, row, rows)
    for column, host in enumerate(hosts):
        x = _LEFT + column * _HOST
        parts += [
            f'<rect x="{x}" y="{_TOP}" width="{_BOX}" height="40" rx="8" fill="#ffffff" '
            'stroke="#555" stroke-width="1.3"/>',
            f'<text x="{x + _BOX / 2}" y="{_TOP + 25}" text-anchor="middle" font-weight="bold" '
            f'fill="#222">{escape(_cut(host, 14))}</text>',
        ]
    if len(measured.hosts) > len(hosts):
        more = f"and {len(measured.hosts) - len(hosts)} more hosts"
        parts.append(f'<text x="{across}" y="{_TOP + 25}" fill="#666">{more}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _network(
    network: Network,
    hosts: list[str],
    choice: Choice,
    captions: tuple[str, str],
    level: float,
    across: float,
    row: int,
    rows: int,
) -> list[str]:
    kind = choice.verdicts[network.name].kind
    colour = _COLOURS.get(kind, _BROKEN)
    dashed = "" if kind in _COLOURS else ' stroke-dasharray="5 4"'
    stroke = f'stroke="{colour}" stroke-width="{3 if kind == "chosen" else 1.6}"{dashed}'
    ends = [
        (column, network.ends[host]) for column, host in enumerate(hosts) if host in network.ends
    ]
    # each network leaves the boxes at a place of its own, the first one at the right: so no line
    # crosses what is written at another one
    shift = 12 + (rows - 1 - row) * min(14.0, 40 / max(1, rows - 1))
    parts = [f'<path d="M{_LEFT} {level}H{across - 14}" fill="none" {stroke}/>']
    for column, end in ends:
        x = _LEFT + column * _HOST + shift
        parts += [
            f'<path d="M{x:.0f} {_TOP + 40}V{level}" fill="none" {stroke}/>',
            f'<circle cx="{x:.0f}" cy="{level}" r="4" fill="{colour}"/>',
            f'<text x="{x + 6:.0f}" y="{level - 6}" font-size="11" fill="#444">'
            f"{escape(_cut(end.name, 12))}</text>",
            f'<text x="{x + 6:.0f}" y="{level + 15}" font-size="10" fill="#777">'
            f"{escape(_cut(end.address, 18))}</text>",
        ]
    first, second = captions
    return [
        *parts,
        f'<text x="{across}" y="{level - 2}" font-weight="bold" fill="{colour}">'
        f"{escape(first)}</text>",
        f'<text x="{across}" y="{level + 15}" font-size="12" fill="#444">{escape(second)}</text>',
    ]


def _captions(measured: Measured, choice: Choice, network: Network) -> tuple[str, str]:
    """Returns the two lines of text beside a network's line."""
    verdict = choice.verdicts[network.name]
    first = f"{network.name} · {verdict.kind}"
    paces = list(measured.paces.get(network.name, {}).values())
    if not paces:
        return first, verdict.text
    slowest = rate_text(min(pace.rate for pace in paces))
    latency = time_text(statistics.median(pace.latency for pace in paces))
    return first, f"{slowest} between the slowest two, {latency}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
