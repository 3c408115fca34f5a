"""Reports measured networks: as text, as JSON (`shanty net --json`), and drawn as SVG."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shanty.launch.network.topology import (
    Choice,
    Contact,
    Interface,
    Measured,
    Network,
    Pair,
    SurveyedHost,
    usable,
)

_COLOURS = {"chosen": "#0b5fa5", "joins": "#2b7a2b", "slow": "#b3470c"}
_BROKEN = "#9a9a9a"
_LEFT, _HOST, _BOX, _TOP, _LINE = 24, 132, 112, 24, 62
_CHARACTER = 7.2  # its approximate width
_DRAWN = 24  # hosts that are drawn
_MOST = 6  # names in a list
SEEN = {  # by the kind of a contact
    "ok": "reached",
    "no-answer": "no answer",
    "refused": "connection refused",
    "unreachable": "rejected, or no route",
    "silent": "connected, but no answer",
    "wrong-host": "another host answers",
    "large-lost": "small packets pass, large ones vanish",
    "large-lost-back": "small packets pass, large ones vanish on the way back",
    "error": "cannot be tried",
}


def rate_text(rate: float) -> str:
    """Returns a rate as text: 94 Mbit/s, 9.4 Gbit/s."""
    bits = rate * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def kinds_text(contacts: Iterable[Contact]) -> str:
    """Names the results, each once."""
    said = (
        f"{SEEN[one.kind]}{f' ({one.text})' if one.kind == 'error' else ''}" for one in contacts
    )
    return ", ".join(dict.fromkeys(said))


def pairs_text(pairs: Iterable[Pair]) -> str:
    """Names the first few of the pairs: a → b, b → c."""
    return _first([f"{source} → {target}" for source, target in pairs])


def names_text(measured: Measured, hosts: Iterable[str]) -> str:
    """Names the hosts, in the order of the run; the first few of many."""
    wanted = set(hosts)
    names = [name for name in measured.hosts if name in wanted]
    if len(names) == len(measured.hosts) > 2:
        return "all hosts"
    return _first(names)


def _first(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more


def time_text(seconds: float) -> str:
    """Returns a short time as text: 45 µs, 1.2 ms."""
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def as_json(hosts: Sequence[SurveyedHost], measured: Measured, choice: Choice) -> dict[str, Any]:
    """Returns everything as plain JSON, in bytes/s and seconds; null for unknown values."""
    return {
        "hosts": [
            {"name": host.name, "address": host.address, "interfaces": interfaces(host.survey)}
            for host in hosts
        ],
        "networks": [
            {
                "name": network.name,
                "verdict": choice.verdicts[network.name].kind,
                "text": choice.verdicts[network.name].text,
                "ssh": network.ssh,
                "hosts": _ends(network.ends),
                "pairs": _pairs(measured, network),
            }
            for network in measured.networks
        ],
        "together": [
            {
                "networks": list(names),
                "pairs": [
                    {"from": a, "to": b, "rates": list(rates)} for (a, b), rates in each.items()
                ],
            }
            for names, each in measured.together.items()
        ],
        "route": [_ends(rail.interfaces) for rail in choice.route.rails],
        "reason": choice.route.reason,
        "findings": [finding.to_json() for finding in choice.findings],
        "age": choice.age or 0.0,
        "seconds": choice.seconds if choice.age is None else 0.0,
    }


def interfaces(survey: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a host's interfaces that may lead to others; `speed` is the kernel's value."""
    links = survey.get("links", {})
    found = []
    for entry in usable(survey["addresses"]):
        link = links.get(entry["interface"], {})
        end = Interface(entry["interface"], entry["address"], entry["prefix"])
        found.append(
            {
                **_end(end),
                "network": end.network,
                "carries": entry["up"],
                "speed": link["speed"] * 125e3 if link.get("speed") else None,
                "mtu": link.get("mtu") or None,
                "kind": link.get("kind", ""),
            }
        )
    return found


def _ends(ends: Mapping[str, Interface]) -> dict[str, Any]:
    return {host: _end(end) for host, end in ends.items()}


def _end(end: Interface) -> dict[str, Any]:
    return {"interface": end.name, "address": end.address, "prefix": end.prefix}


def _pairs(measured: Measured, network: Network) -> list[dict[str, Any]]:
    found = []
    for (source, target), contact in measured.contacts.get(network.name, {}).items():
        pace = measured.paces.get(network.name, {}).get((source, target))
        found.append(
            {
                "from": source,
                "to": target,
                "contact": contact.kind,
                "via": contact.via,
                "rate": pace.rate if pace else None,
                "latency": pace.latency if pace else None,
            }
        )
    return found


def draw(measured: Measured, choice: Choice) -> str:
    """Draws the hosts in a row, and below them a line for each network to its hosts.

    Networks that the run takes are bold; networks that do not join their hosts are dashed.
    """
    hosts = list(measured.hosts[:_DRAWN])
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
        f'<title id="title">The networks between {_escaped(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="10" fill="#fbfaf7"/>',
    ]
    # the last network first, so that the lines of the first networks are on top
    for row, (network, captions) in reversed(list(enumerate(rows))):
        level = _TOP + 44 + _LINE * (row + 1) - 14
        # each network leaves the boxes at a different place, the first at the right, so that lines
        # do not cross the texts of other networks
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
    return f'<text x="{x:.0f}" y="{y}" {style}>{_escaped(words)}</text>'


def _escaped(words: str) -> str:
    from html import escape

    return escape(words, quote=False)


def _captions(measured: Measured, choice: Choice, network: Network) -> tuple[str, str]:
    """Returns the two lines of text next to a network's line."""
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
