"""Which machines a wheel runs on, by its platform tags.

The tags are those of https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shanty.runtime.errors import PrepareError

_OTHER_MPI = (
    "take hosts of one kind, or install the same MPI on all by the system's packages and name it "
    "with --mpi"
)
_OLD_TAGS = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def wheel_tags(info: Path) -> tuple[str, ...]:
    """The platform tags of an installed wheel: `manylinux_2_28_x86_64`, `any`."""
    text = (info / "WHEEL").read_text(encoding="utf-8") if (info / "WHEEL").exists() else ""
    tags = re.findall(r"^Tag:\s*\S+-\S+-(\S+)\s*$", text, re.MULTILINE)
    return tuple(dict.fromkeys(tag for group in tags for tag in group.split(".")))


def own_tag(here: Mapping[str, str]) -> str:
    """The tag of what is known only to run on this machine."""
    if here["glibc"]:
        return f"manylinux_{here['glibc'].replace('.', '_')}_{here['architecture']}"
    return f"linux_{here['architecture']}"


def runs_on(tags: Iterable[str], there: Mapping[str, str]) -> bool:
    """True when a wheel with one of these platform tags runs on a machine."""
    return any(_runs_on(tag, there) for tag in tags)


def _runs_on(tag: str, there: Mapping[str, str]) -> bool:
    if tag == "any":
        return True
    architecture = there["architecture"]
    if not tag.endswith("_" + architecture):
        return tag.startswith("macosx_") and tag.endswith("_universal2") and _is_mac(there)
    if tag.startswith("macosx_"):
        return _is_mac(there)
    if there["system"] != "Linux":
        return False
    kind = tag.removesuffix("_" + architecture)
    if kind == "linux":
        return True
    if kind.startswith("musllinux"):
        return not there["glibc"]
    wanted = _OLD_TAGS.get(kind)
    if wanted is None:
        found = re.fullmatch(r"manylinux_(\d+)_(\d+)", kind)
        wanted = (int(found[1]), int(found[2])) if found else None
    if wanted is None or not there["glibc"]:
        return False
    major, _, minor = there["glibc"].partition(".")
    return (int(major), int(minor)) >= wanted


def _is_mac(there: Mapping[str, str]) -> bool:
    return there["system"] == "macOS"


def refuse_foreign(
    title: str, tags: Sequence[str], there: Mapping[str, str], host: str, fix: str = _OTHER_MPI
) -> None:
    """Raises PrepareError when a package with these platform tags does not run on the host."""
    if not tags or runs_on(tags, there):
        return
    libc = f" with glibc {there['glibc']}" if there["glibc"] else ""
    raise PrepareError(
        f"{title} of this machine does not run on {host}",
        f"it is built for {' or '.join(tags)}; {host} is {there['system']} on "
        f"{there['architecture']}{libc}",
        fix,
    )
