"""Containers on a host: which engine there is, the images that it has, and what runs left."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shutil
from typing import Any, Dict, List, Optional, Sequence, Tuple

from shanty.runtime import platform, stored_tree
from shanty.runtime.containers import portable_python
from shanty.runtime.containers.container import ARTIFACTS, has_to_unpack
from shanty.runtime.containers.engines import ENGINES, PROGRAMS, is_image_file
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.programs import run
from shanty.runtime.rpc import Ask, Data, Say
from shanty.runtime.rpc.images import Found, look, program_of
from shanty.runtime.rpc.store import home, mark_used, place_of, placing

_LIST_LIMIT = 3.0  # seconds for an engine to list its containers
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


def container_engine(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`runtime image mounts`: the engine to take, and `image` if it has that; what goes with it.

    `runtime` is an engine, or None for any; an engine with the image comes first. `container` are
    the fields of `Container` that are this host's own. Each source in `mounts` has to exist.
    """
    image = str(ask["image"])
    for source, *_ in ask.get("mounts", ()):
        if source != ARTIFACTS and not os.path.exists(source):
            raise NotFoundError(f"{source}, which is to be mounted, not found", fix="check --mount")
    found = _choose(ask.get("runtime"), image)
    note_use(found.engine)
    rootless = found.engine == "docker" and os.getuid() != 0 and _is_rootless(found.program)
    return {
        "engine": found.engine,
        "program": found.program,
        "image": found.image,
        "container": _of_this_host(found, rootless=rootless),
    }


def _choose(wanted: Optional[str], image: str) -> Found:
    names = [wanted] if wanted else ["apptainer"] if is_image_file(image) else list(ENGINES)
    if is_image_file(image) and names != ["apptainer"]:
        raise UsageError(
            f"{wanted} does not take image files", f"{image} is a path", "use --runtime apptainer"
        )
    seen: List[Found] = []
    for name in names:
        program = program_of(name)
        if program is None:
            continue
        seen.append(look(name, program, image))
        if seen[-1].image is not None:
            return seen[-1]
    usable = [each for each in seen if not each.problem]
    if usable:
        return usable[0]
    if seen:
        raise PrepareError(
            f"{ENGINES[seen[0].engine].title} cannot be used there", seen[0].problem, seen[0].fix
        )
    if wanted == "docker" and shutil.which("docker"):
        raise PrepareError("Docker not found there", "its docker is podman", "--runtime podman")
    if is_image_file(image):
        raise PrepareError(
            "Apptainer not found there",
            f"{image} is the path of an image file or folder, which only Apptainer takes",
            "install apptainer (apptainer.org), or use an image by its name with podman or docker",
        )
    titles = " or ".join(ENGINES[name].title for name in names)
    raise PrepareError(
        f"{titles} not found there",
        "a container needs one of them",
        "install podman or docker (Debian, Ubuntu: apt-get install podman)",
    )


def _of_this_host(found: Found, *, rootless: bool) -> Dict[str, Any]:
    """The fields of a `Container` for the user of its processes, and for its start on this host."""
    uid, gid = os.getuid(), os.getgid()
    user, groups, mounts = "", [], []
    variables = [name for word in _PROXIES for name in (word, word.upper())]
    environment = {"SHANTY_HOME": home()}
    if found.engine == "docker" or (found.engine == "podman" and uid == 0):
        user = "0:0" if rootless else f"{uid}:{gid}"
        groups = [] if uid == 0 else sorted(set(os.getgroups()) - {gid})
    if found.engine == "docker" and uid != 0 and not rootless:
        # Programs ask for the name of their user, which Docker does not provide.
        mounts = [[path, f"/etc/{name}", "ro"] for name, path in _names(uid, gid, groups).items()]
        environment.update(HOME="/tmp", USER=_user(uid), LOGNAME=_user(uid))
    return {
        "user": user,
        "groups": groups,
        "mounts": mounts,
        "unpack": has_to_unpack(found.engine),
        "variables": [name for name in variables if name in os.environ],
        "environment": environment,
    }


def _names(uid: int, gid: int, groups: Sequence[int]) -> Dict[str, str]:
    """Files for /etc of a container: its users, and its groups."""
    texts = {
        "passwd": ["root:x:0:0:root:/root:/bin/sh", f"{_user(uid)}:x:{uid}:{gid}::/tmp:/bin/sh"],
        "group": [
            "root:x:0:",
            *(f"{_group(each)}:x:{each}:{_user(uid)}" for each in (gid, *groups)),
        ],
    }
    found = {}
    for name, lines in texts.items():
        text = "\n".join(lines) + "\n"
        folder = os.path.join(home(), "cache", "containers")
        path = os.path.join(folder, f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(file.name, path)
        found[name] = path
    return found


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user{uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"group{gid}"


def _is_rootless(program: str) -> bool:
    done = run([program, "info", "--format", "{{.SecurityOptions}}"])
    return done is not None and "name=rootless" in done.stdout


# ---------------------------------------------------------------------------- what was left


def containers_sweep(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """End the containers of runs that are over, or whose agents are gone."""
    return {"removed": sweep()}


def note_use(engine: str) -> None:
    """Remember that runs have used an engine, so that it is looked at for what they left.

    Others are not touched: podman makes its storage, and a process, when it is only asked.
    """
    path = _used(engine)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8"):
        os.utime(path)


def _used(engine: str) -> str:
    return os.path.join(home(), "cache", "containers", f"{engine}.used")


def left() -> List[Tuple[str, List[str]]]:
    """The containers of runs whose agents are gone: each one's name, and what removes it.

    Of this user's runs on this host only: others may use the same engine.
    """
    found = []
    for engine in ENGINES.values():
        program = program_of(engine.name) if os.path.exists(_used(engine.name)) else None
        if program is None:
            continue
        words = engine.listing(program)
        done = run(words, _LIST_LIMIT) if words else None
        for line in done.stdout.splitlines() if done is not None else ():
            name, _, of_run = line.partition(" ")
            if of_run.startswith(home() + os.sep) and not _is_held(name):
                found.append((name, engine.removal(program, name)))
    return found


def sweep() -> List[str]:
    """End what is left; the names of those containers."""
    found = left()
    for _, words in found:
        run(words)
    return [name for name, _ in found]


def _is_held(name: str) -> bool:
    """True while the command of an engine that started a container is there."""
    programs = {program for each in PROGRAMS.values() for program in each}
    commands = (platform.command(entry.pid) for entry in platform.with_argument(name))
    return any(words and os.path.basename(words[0]) in programs for words in commands)


def python_anywhere(_ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """Make a copy of this host's Python that runs in any image; where it is."""
    path = place_of("portable", portable_python.name())
    if not mark_used(path) or stored_tree.damage(path):
        with placing(path) as folder:
            portable_python.fill(folder)
            stored_tree.note(folder)
    return {"python": os.path.join(path, "bin", "python")}
