"""Builds images without a Dockerfile: layers on those of a base image, in docker or podman.

No command runs in the image while it is made, and no network is needed where the base image is
there. The same inputs give the same image, which is then found by its label.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shanty.launch import mpis
from shanty.launch.containers import layer, recipe
from shanty.launch.containers.images import ask_here, find_here, keep_here, machine_of
from shanty.launch.containers.layer import Venv
from shanty.launch.containers.options import IMAGE_MPI
from shanty.launch.containers.recipe import CODE, FOLDER, Base, Part
from shanty.launch.content.environment import Environment
from shanty.launch.transport.parallel import Say, Step
from shanty.runtime.containers.archive import BLOCK, Reader, layers_of, pieces, plain_digest
from shanty.runtime.containers.engine_errors import explained
from shanty.runtime.containers.engines import ENGINES, LAYERED
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.programs import run
from shanty.runtime.rpc import describe_python, images, layers
from shanty.runtime.rpc.images import look, program_of
from shanty.runtime.rundir import read_json, write_json

LABEL = "shanty.inputs"  # of an image: the hash of all that went into it
_FORM = "1"  # of what is made of the same inputs
_LOOK_LIMIT = 120  # seconds for a container to say what its image has
_GLIBC = "import os; print((os.confstr('CS_GNU_LIBC_VERSION') or '').partition('glibc ')[2])"
# Finds the Python of an image; its arguments are names to try, then two programs for it.
_FINDS = (
    'for p in "$1" python3 python; do command -v "$p" >/dev/null || continue; '
    '"$p" -c "$3" 2>/dev/null || echo; exec "$p" -E -c "$2"; done; echo shanty-no-python'
)
_NAME = re.compile(r"[a-z0-9]+(?:[._/:@-]+[a-zA-Z0-9_]+)*\Z")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an image is to have; None stands for what is usual.

    `folder` is the workspace, `names` are the names that the image gets.
    """

    names: tuple[str, ...]
    folder: Path
    base: str | None = None
    python: str | None = None
    requirements: str | None = None
    mpi: str | None = None
    with_code: bool = False
    runtime: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What would go into an image, and the engine that makes it; `hash` is over all of it."""

    wanted: Wanted
    engine: str
    program: str
    base: Base
    source: str  # where the packages come from
    parts: tuple[Part, ...]
    mpi: bool

    @property
    def hash(self) -> str:
        """The name of all inputs."""
        code = self.wanted.with_code
        parts = [_FORM, self.base.id, str(self.base.venv), str(code), *(p.key for p in self.parts)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is there now; `new` is false where it was there before."""

    id: str
    engine: str
    new: bool
    size: int


def usual_name(folder: Path) -> str:
    """The name of an image of this workspace."""
    return re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "work"


# ---------------------------------------------------------------------------------- planning


def plan(wanted: Wanted, home: Path, environ: Mapping[str, str], say: Say) -> Plan:
    """Find out what would go into the image; the base image is pulled where it is missing."""
    for name in wanted.names:
        if not _NAME.match(name):
            raise UsageError(
                f"invalid name for an image: {name!r}",
                fix="write NAME or NAME:TAG, in small letters, or REGISTRY/NAME:TAG",
            )
    packages, source = recipe.chosen(
        wanted.python, wanted.requirements, wanted.folder, home, environ, say
    )
    mpi = None
    if wanted.mpi != IMAGE_MPI:
        mpi = mpis.select(wanted.mpi, home, environ)
    engine, program, base = _base(wanted, packages, home, say)
    code = wanted.folder if wanted.with_code else None
    parts = recipe.parts(base, packages, mpi, code, home, say)
    return Plan(wanted, engine, program, base, source, tuple(parts), mpi is not None)


def _base(wanted: Wanted, packages: Environment, home: Path, say: Say) -> tuple[str, str, Base]:
    name = wanted.base or f"docker.io/library/python:{packages.key.rstrip('t')}-slim"
    found = ask_here("container-engine", runtime=wanted.runtime, image=name, mounts=[])
    engine, program, there = found["engine"], found["program"], found["image"]
    if engine not in LAYERED:
        raise PrepareError(
            f"{ENGINES[engine].title} cannot make an image of layers",
            "it has image files",
            "install docker or podman here; hosts with Apptainer run their images, too",
        )
    if there is None:
        say(f"{ENGINES[engine].title} pulls {name}")
        asked = {"engine": engine, "program": program, "image": name, "user": None}
        there = ask_here("image-pull", **asked)["image"]
    cache = home / "cache" / "images" / f"base-{plain_digest(there['id'])}-{packages.key}.json"
    seen = read_json(cache)
    if not seen:
        say(f"looks into {name}")
        seen = _look_into(engine, program, name, there["id"], packages.key)
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, seen)
    if seen["key"] != packages.key:
        raise PrepareError(
            f"the image {name} has Python {seen['key']}",
            f"the packages are for Python {packages.key}",
            f"take --base python:{packages.key}-slim, or choose another environment with --python",
        )
    machine = {
        "system": "Linux", "architecture": machine_of(there["arch"]), "glibc": seen["glibc"],
    }  # fmt: skip
    versions = {one["name"]: one["version"] for one in seen["distributions"]}
    versions.pop("shanty", None)
    python = (seen["executable"], seen["version"], seen["key"], seen["cache_tag"])
    venv = Venv(f"{FOLDER}/venv", *python)
    return engine, program, Base(name, there["id"], venv, machine, versions)


def _look_into(engine: str, program: str, name: str, image: str, key: str) -> dict[str, Any]:
    """Ask the Python of an image about itself, in a container that is removed afterwards."""
    text = Path(describe_python.__file__).read_text(encoding="utf-8")
    words = [program, "run", "--rm", "--network", "none", "--log-driver", "none"]
    words += ["--entrypoint", "/bin/sh", image, "-c", _FINDS, "sh", f"python{key}", text, _GLIBC]
    done = run(words, _LOOK_LIMIT)
    if done is None:
        what = f"{ENGINES[engine].title} cannot start a container of {name}"
        raise PrepareError(what, f"it does not run, or takes more than {_LOOK_LIMIT} s")
    try:
        glibc, _, said = done.stdout.partition("\n")
        if "shanty-no-python" in done.stdout:
            raise PrepareError(
                f"the image {name} has no Python",
                "the packages of an environment need one",
                f"take --base python:{key}-slim, or another image with Python {key}",
            )
        found: dict[str, Any] = json.loads(said)
    except ValueError as error:
        why, fix = explained(done.stderr)
        what = f"{ENGINES[engine].title} cannot start a container of {name}"
        raise PrepareError(what, why, fix) from error
    names = ("executable", "version", "key", "cache_tag", "distributions")
    return {**{name: found[name] for name in names}, "glibc": glibc.strip()}


# ---------------------------------------------------------------------------------- building


def build(planned: Plan, home: Path, say: Say) -> Built:
    """Make the image unless it exists, and give it the names that were wanted."""
    engine, program, names = planned.engine, planned.program, planned.wanted.names
    there = layers.images_of(program, f"label={LABEL}={planned.hash}")
    if there:
        found = there[0]
        for name in names:
            run([program, "tag", found["Id"], name])
        return Built(plain_digest(found["Id"]), engine, False, int(found.get("Size") or 0))
    base = find_here(planned.base.id, engine)
    if base is None:
        raise PrepareError(f"{planned.base.name} is gone", fix="run the command again")
    below = keep_here(replace(base, name=planned.base.name), home, base.layers, say)
    made = [_kept(part, home, say) for part in planned.parts]
    config = _config(below, planned, made)
    before = {name: look(engine, program, name).image for name in names}

    def told(said: Mapping[str, Any]) -> None:
        say(str(Step("", f"{engine} takes {names[0]}", said["done"], said["total"])))

    named = {"engine": engine, "program": program, "id": "", "name": names[0], "rename": True}
    found = layers.image_load(named, io.BytesIO(config), told)["image"]
    for name in names[1:]:
        run([program, "tag", found["id"], name])
    for old in before.values():
        if old is not None and old["id"] != found["id"]:
            _drop(program, old["id"])
    return Built(plain_digest(found["id"]), engine, True, found["size"])


def push(planned: Plan, name: str, user: str, password: str) -> None:
    """Push an image to the registry in its name."""
    images.push(planned.engine, planned.program, name, user, password)


def _drop(program: str, image: str) -> None:
    """Remove the image that had a name before, if shanty built it and nothing else uses it."""
    for said in layers.images_of(program, f"label={LABEL}"):
        if said["Id"] == image and not said.get("RepoTags"):
            run([program, "image", "rm", image])


def _kept(part: Part, home: Path, say: Say) -> str:
    """The layer of a part, by its digest; it is made where the store does not have it."""
    name = hashlib.sha256(f"{_FORM} {part.key}".encode()).hexdigest()
    file = home / "cache" / "images" / f"layer-{name}.json"
    digest = (read_json(file) or {}).get("layer")
    if isinstance(digest, str) and layers.kept(digest) is not None:
        return digest
    made = layers.keep(_told(part, say))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"layer": made.digest})
    return made.digest


def _told(part: Part, say: Say) -> Iterator[bytes]:
    """The tar of a part, in blocks of one size."""
    done = 0
    for block in pieces(Reader(layer.blocks(part.make())), BLOCK):
        yield block
        done += len(block)
        say(str(Step("", f"packs {part.title}", done, max(done, part.size))))


def _config(below: bytes, planned: Plan, made: Sequence[str]) -> bytes:
    """The description of an image: that of its base, with our layers and settings."""
    base = json.loads(below)
    config = dict(base.get("config") or {})
    variables = dict(one.partition("=")[::2] for one in config.get("Env") or [])
    bins = [f"{planned.base.venv.folder}/bin"]
    if planned.mpi:
        bins.append(f"{FOLDER}/mpi/bin")
    path = variables.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables |= {"PATH": ":".join([*bins, path]), "VIRTUAL_ENV": planned.base.venv.folder}
    config["Env"] = [f"{name}={value}" for name, value in variables.items()]
    labels = {LABEL: planned.hash, "shanty.base": planned.base.name}
    config["Labels"] = {**(config.get("Labels") or {}), **labels}
    if planned.wanted.with_code:
        config["WorkingDir"] = CODE
    kept = {
        name: base[name] for name in ("architecture", "os", "variant", "created") if name in base
    }
    history = list(base.get("history") or [])
    own = len(layers_of(below))
    if sum(not one.get("empty_layer") for one in history) != own:
        history = [{"created_by": "its base"} for _ in range(own)]
    history += [{"created_by": f"shanty image build: {part.title}"} for part in planned.parts]
    digests = [*layers_of(below), *made]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]}
    whole = {**kept, "config": config, "history": history, "rootfs": rootfs}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


# ------------------------------------------------------------------------- list and remove


@dataclass(frozen=True, slots=True)
class Known:
    """An image that shanty has built; it may have several names, or none any more."""

    engine: str
    id: str
    names: tuple[str, ...]
    size: int
    base: str


def known(runtime: str | None = None) -> list[Known]:
    """The images of this machine that shanty has built."""
    found = []
    for engine, program in _programs(runtime):
        for said in layers.images_of(program, f"label={LABEL}"):
            labels = (said.get("Config") or {}).get("Labels") or {}
            names = tuple(sorted(said.get("RepoTags") or ()))
            values = (plain_digest(said["Id"]), names, int(said.get("Size") or 0))
            found.append(Known(engine, *values, labels.get("shanty.base", "")))
    return sorted(set(found), key=lambda one: (one.names, one.engine, one.id))


def remove(name: str, runtime: str | None = None) -> list[str]:
    """Remove an image that shanty has built from every engine; returns these engines.

    NotFoundError where there is none, UsageError where somebody else made it, PrepareError where
    a container uses it.
    """
    own = {(one.engine, one.id) for one in known(runtime)}
    removed = []
    for engine, program in _programs(runtime):
        there = look(engine, program, name).image
        if there is None:
            continue
        if (engine, plain_digest(there["id"])) not in own:
            raise UsageError(
                f"{name} was not built by shanty",
                "shanty removes only its own images",
                f"{engine} image rm {name}",
            )
        done = run([program, "image", "rm", name])
        if done is None or done.returncode:
            why, fix = explained(done.stderr if done is not None else "")
            raise PrepareError(f"{name} cannot be removed", why, fix)
        removed.append(engine)
    if not removed:
        raise NotFoundError(f"image {name} not found", fix="shanty image list shows all")
    return removed


def _programs(runtime: str | None) -> Iterator[tuple[str, str]]:
    for engine in [runtime] if runtime else LAYERED:
        program = program_of(engine)
        if program is not None:
            yield engine, program
