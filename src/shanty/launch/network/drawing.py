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
    rows = [(network, _captions(measured, choice, network)) for network in measured.networks]
    longest = max((len(line) for _, lines in rows for line in lines), default=0)
    width = int(across + 16 + max(longest * _CHARACTER, 80))
    height = _TOP + 44 + _LINE * len(rows) + 34
    title = ", ".join(hosts[:6]) + (" and others" if len(measured.hosts) > 6 else "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title" '
        'font-family="system-ui, \'DejaVu Sans\', Helvetica, Arial, sans-serif" font-size="13">',
        f'<title id="title">The networks between {escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="10" fill="#fbfaf7"/>',
    ]
    # the last network first, so that the lines of the first ones lie above
    for row, (network, captions) in reversed(list(enumerate(rows))):
        level = _TOP + 44 + _LINE * (row + 1) - 14
        # each network leaves the boxes at a place of its own, the first one at the right: so no
        # line crosses what is written at another one
        shift = 12 + (len(rows) - 1 - row) * min(14.0, 40 / max(1, len(rows) - 1))
        kind = choice.verdicts[network.name].kind
        colour = _COLOURS.get(kind, _BROKEN)
        dashed = "" if kind in _COLOURS else ' stroke-dasharray="5 4"'
        stroke = f'stroke="{colour}" stroke-width="{3 if kind == "chosen" else 1.6}"{dashed}'
        parts.append(f'<path d="M{_LEFT} {level}H{across - 14}" fill="none" {stroke}/>')
        for column, end in enumerate(map(network.ends.get, hosts)):
            if end is not None:
                x = _LEFT + column * _HOST + shift
                parts += [
                    f'<path d="M{x:.0f} {_TOP + 40}V{level}" fill="none" {stroke}/>',
                    f'<circle cx="{x:.0f}" cy="{level}" r="4" fill="{colour}"/>',
                    _text(x + 6, level - 6, _cut(end.name, 12), 'font-size="11" fill="#444"'),
                    _text(x + 6, level + 15, _cut(end.address, 18), 'font-size="10" fill="#777"'),
                ]
        parts += [
            _text(across, level - 2, captions[0], f'font-weight="bold" fill="{colour}"'),
            _text(across, level + 15, captions[1], 'font-size="12" fill="#444"'),
        ]
    for column, host in enumerate(hosts):
        x = _LEFT + column * _HOST
        style = 'text-anchor="middle" font-weight="bold" fill="#222"'
        parts += [
            f'<rect x="{x}" y="{_TOP}" width="{_BOX}" height="40" rx="8" fill="#ffffff" '
            'stroke="#555" stroke-width="1.3"/>',
            _text(x + _BOX / 2, _TOP + 25, _cut(host, 14), style),
        ]
    if len(measured.hosts) > len(hosts):
        more = f"and {len(measured.hosts) - len(hosts)} more hosts"
        parts.append(_text(across, _TOP + 25, more, 'fill="#666"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.0f}" y="{y}" {style}>{escape(words)}</text>'


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
