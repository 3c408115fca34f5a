"""How findings say things."""

from __future__ import annotations

import shlex

from shanty.launch.cluster.host import Host

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))


def there(host: Host, *words: str) -> str:
    """A command to paste here that runs `words` on the host."""
    if not host.name:
        return shlex.join(words)
    options = ["-F", host.config] if host.config else []
    options += ["-p", str(host.port)] if host.port else []
    return shlex.join(["ssh", *options, host.login, shlex.join(words)])


def amount(size: int) -> str:
    """Bytes for a person: 512 KiB, 1.5 GiB."""
    for unit, factor in _UNITS:
        if size >= factor:
            number = size / factor
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{size / 1024:.0f} KiB"
