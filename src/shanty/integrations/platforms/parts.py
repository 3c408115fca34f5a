"""Makes the parts of a job from what other platforms' flags say: code, login, line, name, data."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shanty.client import jobs, options
from shanty.client.command import shell_line
from shanty.client.context import Context, note
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import REGISTRY_PASSWORD, Raw

NONE = "none"  # the workspace of an experiment without code
_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io", "hub.docker.com")
_S3 = ("s3://", "gs://")
Login = tuple[str | None, str | None, str]  # for a registry: user, password, the user's flag


def required(values: dict[str, Any], **flags: str) -> None:
    """Raise UsageError where one of the parameters was not given; `flags` are their flags."""
    missing = [flag for param, flag in flags.items() if values.get(param) in (None, "")]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be given", fix="--help shows all flags")


def check_types(here: Context, machines: Sequence[tuple[str, int]]) -> None:
    """Raise NotFoundError for a machine type that is not known, before anything is fetched."""
    for name, _ in machines:
        here.machine_type(name)


# ------------------------------------------------------------------------------------ the code


def workspace(
    source: str | None, ref: str | None, user: str | None, password: str | None, here: Context
) -> tuple[Path, str | None]:
    """Return the folder of the code, and the source that `JobSpec` keeps; it is fetched first."""
    text = source or NONE
    if text.startswith(_S3):
        raise UsageError(
            f"the workspace {text} cannot be fetched",
            "shanty does not read S3 or Google's storage",
            "download it first, and name the folder: --workspace FOLDER",
        )
    if text == NONE:
        _refuse_login(user, password, "nothing is fetched without a workspace")
        _refuse_ref(ref, "the workspace is missing")
        if source is None:
            note(
                "no --workspace: the command runs in an empty folder; --workspace . takes this one"
            )
        empty = here.home / "cache" / "sources" / NONE
        empty.mkdir(parents=True, exist_ok=True)
        return empty, None
    if not _is_url(text):
        _refuse_login(user, password, f"{text} is on this machine")
        folder = Path(text).expanduser()
        if folder.is_dir():
            _refuse_ref(ref, f"{text} is a folder, and taken as it is")
            return folder.resolve(), None
    text = _with_ref(_as_git(text), ref)
    return jobs.fetched_workspace(text, here, _login(text, user, password)), text


def _is_url(text: str) -> bool:
    return "://" in text or re.fullmatch(r"[\w.-]+@[\w.-]+:\S+", text) is not None


def _as_git(text: str) -> str:
    """Mark the URL of a web page as that of a git repository, which the platforms did not need."""
    path = urlsplit(text).path
    plain = text.startswith(("http://", "https://"))
    if not plain or re.search(r"\.git(@|$)", path) or jobs.is_archive(path):
        return text
    return f"git+{text.rstrip('/')}"


def _with_ref(text: str, ref: str | None) -> str:
    if not ref:
        return text
    if not _is_url(text) or jobs.is_archive(text):
        _refuse_ref(ref, f"{text} is an archive")
    return f"{text}@{ref}"


def _refuse_ref(ref: str | None, why: str) -> None:
    if ref:
        raise UsageError(
            "--workspaceRef is for git", why, "name the repository: --workspace https://….git"
        )


def _refuse_login(user: str | None, password: str | None, why: str) -> None:
    if user or password:
        flag = "--workspaceUsername" if user else "--workspacePassword"
        raise UsageError(f"{flag} is for a workspace by http", why, "leave it out")


def _login(text: str, user: str | None, password: str | None) -> tuple[str, str] | None:
    """Return the user and the password for a URL; None where there are none."""
    if not user and not password:
        return None
    if not text.removeprefix("git+").startswith(("http://", "https://")):
        _refuse_login(user, password, "by ssh it is a key that lets one in")
    if not user or not password:
        missing = "--workspacePassword" if user else "--workspaceUsername"
        raise UsageError(
            f"{missing} must be given, too",
            fix="a token is a password as well: --workspacePassword",
        )
    return user, secret(password, "--workspacePassword")


def secret(text: str, flag: str) -> str:
    """Return a password that was typed, with a note, or that of the variable in env:NAME."""
    kind, _, name = text.partition(":")
    if kind == "env" and re.fullmatch(r"\w+", name):
        if name not in os.environ:
            raise UsageError(f"{name} is not set, and {flag} names it", fix=f"export {name}=…")
        return os.environ[name]
    note(f"others on this machine can read {flag} while the command runs; write {flag} env:NAME")
    return text


# ------------------------------------------------------------------------------------ the line


def line(command: str, folder: str | None = None, setup: str = "") -> Raw:
    """Return the line for a shell on the lead host, in a `folder`, after a `setup` line."""
    before = f"cd {shlex.quote(folder)} || exit; " if folder else ""
    before += f"({setup}) || exit; " if setup else ""
    return shell_line(before + command)


def inner_folder(text: str | None, workspace: Path, places: Sequence[str] = ()) -> str | None:
    """Return the working folder below the workspace, checked; None for the workspace itself.

    `places` are where the platform had the workspace. Another absolute path stands for itself.
    """
    if not text:
        return None
    path = os.path.normpath(text)
    for place in places:
        if path == place or path.startswith(f"{place}/"):
            path = os.path.relpath(path, place)
    if path == ".":
        return None
    if not path.startswith("/") and not (workspace / path).is_dir():
        raise UsageError(f"the workspace has no folder {text}", fix="check the name")
    return path


def tags_of(tags: Sequence[str], comma: str | None, project: str | None = None) -> tuple[str, ...]:
    """Return the tags of both spellings, each once, and the project's."""
    parts = [each.strip() for each in (comma or "").split(",")]
    own = [f"project:{project}"] if project else []
    return tuple(dict.fromkeys(each for each in [*tags, *parts, *own] if each))


# ----------------------------------------------------------------------------------- the image


def image_of(image: str | None, registry: str | None, flag: str) -> str | None:
    """Return the name of an image with its registry in it."""
    if not registry:
        return image
    if not image:
        raise UsageError(f"{flag} is for an image, and none is named", fix="leave it out")
    host = urlsplit(registry if "://" in registry else f"//{registry}").netloc
    first, slash, _ = image.partition("/")
    named = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    if host in _DOCKER_HUB or first == host:
        return image
    if named:
        raise UsageError(f"{flag} says {host}, and the image is of {first}", fix="leave one out")
    return f"{host}/{image}"


def registry_login(logins: Sequence[Login], here: Context) -> tuple[str | None, str | None]:
    """Return the fields of JobSpec for a registry's login; its password goes by the environment.

    There can be one login for all images.
    """
    found = {(user, password): flag for user, password, flag in logins if user or password}
    if not found:
        return None, None
    if len(found) > 1:
        raise UsageError(
            f"{' and '.join(found.values())} differ",
            "there is one login for the images of a run",
            "pull one of the images on its machines before, and leave its login out",
        )
    (((user, password), flag),) = found.items()
    if not user:
        raise UsageError(f"{flag} must be given, too", "a password is of a user")
    if password:
        text = secret(password, flag.replace("Username", "Password"))
        here.environ[REGISTRY_PASSWORD] = text
    return user, f"env:{REGISTRY_PASSWORD}"


def data_mounts(
    folders: Sequence[tuple[str, str]], image: str | None, flag: str
) -> tuple[tuple[str, str, str], ...]:
    """Return the mounts of folders with data, which are (folder, place in the container)."""
    mounts = []
    for folder, place in folders:
        if folder.startswith(_S3) or "://" in folder:
            raise UsageError(
                f"{flag} {folder} is not read",
                "shanty does not read S3 or other storage by URL",
                f"download it, and name the folder that all machines have: {flag} FOLDER",
            )
        claim = folder.startswith("pvc:")
        path = folder if claim else os.path.abspath(os.path.expanduser(folder))  # noqa: PTH100, PTH111
        if image is not None:
            mounts.append((path, place, "ro"))
        elif path != place:
            raise UsageError(
                f"{flag} {folder} is to be at {place}, which needs a container",
                "without one a program sees the machine's own files",
                f"have it read {path}, and leave {flag} out",
            )
    return tuple(mounts)


def job_options(values: dict[str, Any], own: Sequence[str]) -> dict[str, Any]:
    """Return the fields of JobSpec that were given by options of `shanty run`."""
    return options.typed({name: values.get(name) for name in own})
