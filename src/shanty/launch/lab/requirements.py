"""What keeps a machine from having a lab, in words that say what to do about it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from shanty.runtime.errors import PrepareError

_PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"  # not on every user's PATH
# A setting of the kernel, the value that forbids a lab, and the one that allows it.
_SETTINGS = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)


def search_path() -> str:
    """Where the system's programs are looked for."""
    return os.environ.get("PATH", "/usr/bin:/bin") + ":" + _SYSTEM_PATH


def programs(names: Iterable[str]) -> dict[str, str]:
    """The paths of programs; PrepareError naming the packages of those that are missing."""
    if not sys.platform.startswith("linux"):
        raise PrepareError(
            "a lab needs Linux",
            f"its hosts are namespaces of the Linux kernel; this is {sys.platform}",
            "run shanty in a virtual machine or a container with Linux",
        )
    found = {name: shutil.which(name, path=search_path()) for name in names}
    missing = [name for name, path in found.items() if not path]
    if missing:
        packages = sorted({_PACKAGES[name] for name in missing})
        raise PrepareError(
            f"a lab needs {', '.join(missing)}",
            "not on PATH, nor in /usr/sbin",
            f"sudo apt-get install {' '.join(packages)}   (the names in Debian and Ubuntu)",
        )
    return {name: path for name, path in found.items() if path}


def forbidden(text: str, number: int | None, root: Path = Path("/")) -> PrepareError:
    """Why the kernel did not let us make a lab: `text` and `number` are what it said."""
    for name, bad, good in _SETTINGS:
        if os.getuid() and _setting(root, name) == bad:
            return PrepareError(
                "this machine does not let an ordinary user make a lab",
                f"the kernel's setting {name} is {bad} ({text})",
                f"sudo sysctl -w {name}={good}   (or run `sudo shanty lab …`)",
            )
    if number in (errno.EPERM, errno.EACCES) or "not permitted" in text:
        return PrepareError(
            "this machine does not allow the namespaces that a lab is made of",
            f"{text}; inside a container its runtime forbids them",
            "start the container with `--privileged`, or with `--cap-add SYS_ADMIN,NET_ADMIN "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined`",
        )
    return PrepareError("the lab could not be made", text)


def _setting(root: Path, name: str) -> str:
    try:
        return (root / "proc/sys" / name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""
