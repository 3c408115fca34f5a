"""What was measured, in words."""

from __future__ import annotations

from collections.abc import Iterable

from shanty.launch.network.measure import Contact, Measured, Pair

_MOST = 6  # of several things that are named
_SEEN = {
    "ok": "reached",
    "no-answer": "no answer",
    "refused": "connection refused",
    "unreachable": "rejected, or no way there",
    "silent": "a connection, and then nothing",
    "wrong-host": "another host answers",
    "large-lost": "small packets pass, large ones vanish",
    "large-lost-back": "small packets pass, large ones vanish on the way back",
    "error": "cannot be tried",
}


def rate_text(rate: float) -> str:
    """A rate in the unit of networks: 94 Mbit/s, 9.4 Gbit/s."""
    bits = rate * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def kinds_text(contacts: Iterable[Contact]) -> str:
    """What was seen, each once."""
    said = (
        f"{_SEEN[one.kind]}{f' ({one.text})' if one.kind == 'error' else ''}" for one in contacts
    )
    return ", ".join(dict.fromkeys(said))


def pairs_text(pairs: Iterable[Pair]) -> str:
    """The first few of the pairs: a → b, b → c."""
    written = [f"{source} → {target}" for source, target in pairs]
    more = f" and {len(written) - _MOST} more" if len(written) > _MOST else ""
    return ", ".join(written[:_MOST]) + more


def names_text(measured: Measured, hosts: Iterable[str]) -> str:
    """The hosts, in the order of the run; the first few of many."""
    wanted = set(hosts)
    names = [name for name in measured.hosts if name in wanted]
    if len(names) == len(measured.hosts) > 2:
        return "all hosts"
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def time_text(seconds: float) -> str:
    """A short time: 45 µs, 1.2 ms."""
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def contact_text(contact: Contact) -> str:
    """What was seen, in a few words."""
    return _SEEN[contact.kind]
