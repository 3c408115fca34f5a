"""Images on a host: whether an engine has one, and how it gets it."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.containers.archive import plain_digest
from shanty.runtime.containers.engine_errors import explained, last_line
from shanty.runtime.containers.engines import PROGRAMS, is_image_file
from shanty.runtime.errors import NotFoundError, PrepareError
from shanty.runtime.programs import run
from shanty.runtime.rpc import Ask, Data, Say, run_long
from shanty.runtime.rpc.store import home, mark_used

_PULL_LIMIT = 7200.0
_REMOTE = re.compile(r"(tcp|ssh|npipe)://")


class Found(NamedTuple):
    """An engine of this host; `problem` is why it cannot be used."""

    engine: str
    program: str
    image: Optional[Dict[str, Any]]
    problem: str = ""
    fix: str = ""


def program_of(engine: str) -> Optional[str]:
    """The path of an engine's command here, if there is one."""
    program = next(filter(None, map(shutil.which, PROGRAMS[engine])), None)
    return None if engine == "docker" and program and _is_podman(program) else program


@functools.cache
def _is_podman(docker: str) -> bool:
    """True where a `docker` is podman, as the package podman-docker has it.

    Its options for the user of a container's processes are others.
    """
    if os.path.basename(os.path.realpath(docker)) == "podman":
        return True
    done = run([docker, "--version"])
    return done is not None and "podman" in done.stdout.lower()


def look(engine: str, program: str, image: str) -> Found:
    """Look whether an engine works, and has the image."""
    if engine == "apptainer":
        return Found(engine, program, _of_file(image))
    if engine == "docker" and _REMOTE.match(os.environ.get("DOCKER_HOST", "")):
        why = f"DOCKER_HOST leads to another machine ({os.environ['DOCKER_HOST']})"
        fix = "run there with --on, or unset DOCKER_HOST"
        return Found(engine, program, None, why, fix)
    done = run([program, "image", "inspect", image])
    if done is None:
        return Found(engine, program, None, "its command does not answer")
    if done.returncode == 0:
        said = json.loads(done.stdout)[0]
        config = said.get("Config") or {}
        names = {
            "id": said["Id"],
            "arch": said.get("Architecture", ""),
            "layers": layers_named(said),
            "content": content_hash(said),
            "size": int(said.get("Size") or 0),
        }
        return Found(engine, program, {**names, "env": config.get("Env") or []})
    text = done.stderr
    if re.search(r"no such image|image not known|no such object|not found", text, re.IGNORECASE):
        return Found(engine, program, None)
    why, fix = explained(text)
    return Found(engine, program, None, why, fix)


def layers_named(said: Mapping[str, Any]) -> List[str]:
    """The digests of an image's layers, by what an engine says of it."""
    return [plain_digest(one) for one in (said.get("RootFS") or {}).get("Layers") or ()]


def content_hash(said: Mapping[str, Any]) -> str:
    """Names what an image is, by what an engine says of it; the same in every engine.

    Its id is not always: where containerd keeps docker's images, that is another digest.
    """
    config = said.get("Config") or {}
    names = ("Env", "Cmd", "Entrypoint", "WorkingDir", "User", "Labels")
    settings = {name: config[name] for name in names if config.get(name)}
    layers = (said.get("RootFS") or {}).get("Layers") or []
    parts = [layers, said.get("Created"), said.get("Architecture"), settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _of_file(image: str) -> Optional[Dict[str, Any]]:
    """An image file or root folder, or what was pulled for a name."""
    path = os.path.realpath(image)
    if not is_image_file(image):
        path = _pulled(image)
        mark_used(os.path.dirname(path))
    try:
        status = os.stat(path)
    except OSError:
        if not is_image_file(image):
            return None
        raise NotFoundError(f"image {image} not found", fix="check the path") from None
    state = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    return {"id": path, "arch": "", "env": [], "state": hashlib.sha256(state.encode()).hexdigest()}


def _pulled(image: str) -> str:
    name = hashlib.sha256(image.encode()).hexdigest()[:40]
    return os.path.join(home(), "store", "images", name, "image.sif")


def image_pull(ask: Ask, data: Data, say: Say) -> Dict[str, Any]:
    """`engine program image user`: have the engine pull the image; the password follows as data."""
    engine, program, image = ask["engine"], ask["program"], str(ask["image"])
    password = data.read().decode()
    pulling = f"the image {image} cannot be pulled"
    user = str(ask.get("user") or "")
    with _credentials(engine, program, image, user, password) as (words, environ):
        if engine == "apptainer":
            path = _pulled(image)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            source = image if "://" in image else f"docker://{image}"
            draft = f"{path}.{os.getpid()}"
            try:
                _transfer([program, "pull", "--force", draft, source], environ, pulling, say)
                os.replace(draft, path)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(draft)
        else:
            _transfer([program, *words, "pull", "--quiet", image], environ, pulling, say)
    found = look(engine, program, image)
    if found.image is None:
        raise PrepareError(f"{image} was pulled but is not found", found.problem)
    return {"image": found.image}


def push(engine: str, program: str, image: str, user: str, password: str) -> None:
    """Have docker or podman push an image to the registry in its name."""
    with _credentials(engine, program, image, user, password) as (words, environ):
        what = f"the image {image} cannot be pushed"
        _transfer([program, *words, "push", image], environ, what, lambda _said: None)


def _transfer(words: Sequence[str], environ: Mapping[str, str], what: str, say: Say) -> None:
    """Run a command that may take long; PrepareError, `what`, where it fails."""
    began = time.monotonic()
    code, text = run_long(
        words, environ, _PULL_LIMIT, lambda: say({"seconds": time.monotonic() - began})
    )
    if code != 0:
        why, fix = explained(text)
        raise PrepareError(what, why or last_line(text), fix)


@contextlib.contextmanager
def _credentials(
    engine: str, program: str, image: str, user: str, password: str
) -> Iterator[Tuple[List[str], Dict[str, str]]]:
    """The words and the environment by which an engine logs in; nothing of it is left.

    Nothing is on a command line, where others could see it.
    """
    environ = dict(os.environ)
    if not user:
        yield [], environ
        return
    if engine == "apptainer":
        environ.update(APPTAINER_DOCKER_USERNAME=user, APPTAINER_DOCKER_PASSWORD=password)
        yield [], environ
        return
    folder = tempfile.mkdtemp(
        prefix="shanty-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    )
    try:
        token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        path = os.path.join(folder, "config.json")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"auths": {name: {"auth": token} for name in _logins(image)}}, file)
        environ["REGISTRY_AUTH_FILE"] = path
        if engine == "docker" and not environ.get("DOCKER_HOST"):
            environ.update(_daemon_of_context(program))
        yield (["--config", folder] if engine == "docker" else []), environ
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _daemon_of_context(program: str) -> Dict[str, str]:
    """The variable that names docker's daemon, which the user's settings may name otherwise.

    With `--config` docker does not read those.
    """
    done = run([program, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"])
    found = done.stdout.strip() if done is not None and done.returncode == 0 else ""
    return {"DOCKER_HOST": found} if found else {}


def _logins(image: str) -> Tuple[str, ...]:
    """The names under which docker and podman keep the login of an image's registry."""
    first = image.split("/")[0]
    named = "/" in image and ("." in first or ":" in first or first == "localhost")
    if not named or first in ("docker.io", "index.docker.io"):
        return ("https://index.docker.io/v1/", "docker.io")
    return (first,)
