"""Fetches a workspace: a folder, a git repository, an archive; or a script by itself.

A fetched workspace is kept in `<home>/cache/sources`, under a hash of its content, and is then a
folder like any other.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from shanty.launch.transport.parallel import Say
from shanty.launch.user_path import user_path
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.rpc.store import UnsafeError, inside, placing, prune, unpack
from shanty.runtime.rundir import storage_errors

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_TAR_ZSTD = (".tar.zst", ".tzst")
ARCHIVES = (".zip", *_TAR, *_TAR_ZSTD)
_GIT = re.compile(
    r"(?:git\+)?(?P<url>(?:https?|ssh|git|file)://\S+?\.git|git\+\w+://[^/\s]*/\S+?|[\w.-]+@[\w.-]+:\S+?)"
    r"(?:@(?P<ref>[^@:\s]+))?"
)
_TIME_LIMIT = 1800  # seconds for a clone or a download
_SILENCE = 60  # seconds without a byte after which a download has failed
_STALE = 2 * _TIME_LIMIT  # seconds after which an unfinished folder is abandoned
_PIECE = 1 << 20


def open_workspace(
    source: str,
    home: Path,
    say: Say = lambda _text: None,
    login: tuple[str, str] | None = None,
) -> Path:
    """The folder of the workspace that `source` names.

    `source` is a folder, a git URL (`https://HOST/NAME.git[@REF]`, `git@HOST:NAME[@REF]`,
    `git+URL[@REF]`), or an archive (`ARCHIVES`) here or at an http URL. If an archive contains a
    single folder, that folder is the workspace. `login` is a user and a password for an http URL.
    Raises NotFoundError, UsageError for anything else, PrepareError if it cannot be fetched or
    unpacked.
    """
    path = user_path(source)
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        return _unpacked(path, source, home)
    archive = source.startswith(("http://", "https://")) and _suffix(urlsplit(source).path)
    if archive:
        return _downloaded(source, home, say, login)
    git = _GIT.fullmatch(source)
    if git is not None:
        return _cloned(git["url"].removeprefix("git+"), git["ref"] or "HEAD", home, say, login)
    if "://" in source:
        raise UsageError(
            f"{source} is not a workspace",
            "it is neither a git URL nor the URL of an archive",
            f"give a URL that ends in .git or in one of {' '.join(ARCHIVES)}, or git+URL",
        )
    raise NotFoundError(f"workspace not found: {source}")


def _cloned(url: str, ref: str, home: Path, say: Say, login: tuple[str, str] | None = None) -> Path:
    if ref.startswith("-"):
        raise UsageError(f"{ref} is not a branch, tag or commit")
    git = Git(url, login)
    commit = _commit(git, url, ref)
    name = f"git-{hashlib.sha256(url.encode()).hexdigest()[:12]}-{commit[:40]}"
    target = home / "cache" / "sources" / name
    if target.is_dir():
        return target
    say(f"fetching {url} at {ref}")
    prune(str(target.parent), _STALE, ".*")
    with placing(str(target)) as folder:
        git("init", "--quiet", folder)
        there = ("-C", folder)
        try:
            git(*there, "fetch", "--quiet", "--depth", "1", "--", url, commit)
        except PrepareError:  # the server fetches by name only, or this is part of a hash
            names = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
            git(*there, "fetch", "--quiet", "--", url, *names)
            git(*there, "checkout", "--quiet", "--detach", commit, "--")
        else:
            git(*there, "checkout", "--quiet", "--detach", "FETCH_HEAD", "--")
        if Path(folder, ".gitmodules").is_file():
            git(*there, "remote", "add", "origin", url)  # for relative URLs
            git(*there, "submodule", "--quiet", "update", "--init", "--recursive")
    return target


def _commit(git: Git, url: str, ref: str) -> str:
    """The commit of `ref` in the repository; a hash, or part of one, is returned unchanged."""
    lines = git("ls-remote", "--", url, ref, f"{ref}^{{}}").splitlines()
    found = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
    for name in (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref):
        if name in found:
            return found[name]
    if re.fullmatch(r"[0-9a-f]{7,40}", ref):
        return ref
    fix = f"`git ls-remote {url}` lists its branches and tags"
    raise NotFoundError(f"{url} has no branch or tag {ref}", "", fix)


class Git:
    """Runs git for one URL, with a login that appears on no command line and in no file."""

    def __init__(self, url: str, login: tuple[str, str] | None) -> None:
        self._url = url
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_DIR")}
        if login is not None:
            parts = urlsplit(url)
            key = f"http.{parts.scheme}://{parts.netloc}/.extraHeader"  # for no other server
            number = int(self._environ.get("GIT_CONFIG_COUNT", "0"))
            self._environ |= {
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_CONFIG_COUNT": str(number + 1),
                f"GIT_CONFIG_KEY_{number}": key,
                f"GIT_CONFIG_VALUE_{number}": f"Authorization: {_basic(login)}",
            }

    def __call__(self, *arguments: str) -> str:
        """Return what git prints; PrepareError where it fails."""
        url = self._url
        try:
            done = subprocess.run(
                ["git", *arguments],
                env=self._environ,  # without a login git may prompt for it on the terminal
                capture_output=True, text=True, errors="replace", timeout=_TIME_LIMIT, check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            why = f"it has to fetch the workspace from {url}"
            raise PrepareError("git is not installed", why, "install git") from error
        except subprocess.TimeoutExpired as error:
            raise PrepareError(f"fetching {url} took more than {_TIME_LIMIT} s") from error
        if done.returncode:
            why = done.stderr.strip()
            raise PrepareError(f"git could not fetch {url}", why, "try `git clone` with that URL")
        return done.stdout


def _basic(login: tuple[str, str]) -> str:
    return f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"


def _suffix(name: str) -> str:
    return next((suffix for suffix in ARCHIVES if name.lower().endswith(suffix)), "")


def open_script(url: str, home: Path, say: Say = lambda _text: None) -> Path:
    """Fetch the Python script at an http URL; return its path, in a separate folder.

    Raises UsageError if the URL does not name a script, PrepareError if it cannot be fetched.
    """
    name = PurePosixPath(urlsplit(url).path).name
    if not url.startswith(("http://", "https://")) or not name.endswith(".py"):
        fix = "give an http URL that ends in .py, or a file"
        raise UsageError(f"{url} is not a script", fix=fix)
    with _downloads(home) as folder:
        file = Path(folder, name)
        _download(url, file, say)
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        target = home / "cache" / "sources" / f"script-{digest[:40]}" / name
        if not target.is_file():
            prune(str(target.parents[1]), _STALE, ".*")
            with placing(str(target.parent)) as place:
                shutil.copyfile(file, Path(place, name))
    return target


def _downloaded(url: str, home: Path, say: Say, login: tuple[str, str] | None = None) -> Path:
    with _downloads(home) as folder:
        file = Path(folder, PurePosixPath(urlsplit(url).path).name)
        _download(url, file, say, login)
        return _unpacked(file, url, home)


def _downloads(home: Path) -> tempfile.TemporaryDirectory[str]:
    folder = home / "cache" / "sources"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder)


def _download(url: str, file: Path, say: Say, login: tuple[str, str] | None = None) -> None:
    say(f"fetching {url}")
    end = time.monotonic() + _TIME_LIMIT
    request = urllib.request.Request(url)
    if login is not None:  # a redirection to another server does not get it
        request.add_unredirected_header("Authorization", _basic(login))
    try:
        with (
            urllib.request.urlopen(request, timeout=_SILENCE) as source,
            file.open("wb") as sink,
        ):
            while piece := source.read(_PIECE):
                sink.write(piece)
                if time.monotonic() > end:
                    raise PrepareError(f"fetching {url} took more than {_TIME_LIMIT} s")
    except urllib.error.HTTPError as error:
        error.close()
        why = f"the server answers {error.code} {error.reason}"
        raise PrepareError(f"cannot fetch {url}", why) from error
    except OSError as error:
        raise PrepareError(f"cannot fetch {url}", str(error)) from error


def _unpacked(archive: Path, source: str, home: Path) -> Path:
    suffix = _suffix(archive.name)
    if not suffix:
        raise UsageError(
            f"{source} is not a workspace",
            "it is a file of another type than the archives that shanty knows",
            f"give a folder, or one of {' '.join(ARCHIVES)}",
        )
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = home / "cache" / "sources" / f"archive-{digest[:40]}"
    if not target.is_dir():
        prune(str(target.parent), _STALE, ".*")
        with placing(str(target)) as folder:
            try:
                _unpack(archive, suffix, folder)
            except UnsafeError as error:
                fix = "an archive may contain only files below its own folder"
                raise PrepareError(f"{source} is not unpacked", error.what, fix) from error
            except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
                raise PrepareError(f"{source} cannot be unpacked", str(error)) from error
    entries = list(target.iterdir())
    single = len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink()
    return entries[0] if single else target


def _unpack(archive: Path, suffix: str, folder: str) -> None:
    if suffix in _TAR_ZSTD:
        _unpack_zstd(archive, folder)
        return
    if suffix != ".zip":
        with tarfile.open(archive) as tar:
            unpack(tar, folder)
        return
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            inside(member.filename.replace("\\", "/"))
            path = Path(file.extract(member, folder))
            if not member.is_dir() and member.external_attr >> 16 & 0o100:
                path.chmod(0o755)


def _unpack_zstd(archive: Path, folder: str) -> None:
    """Through zstd(1): Python reads it only from 3.14 on."""
    program = shutil.which("zstd")
    if program is None:
        raise PrepareError(f"{archive.name} cannot be unpacked", fix="install zstd")
    with (
        subprocess.Popen([program, "-dc", str(archive)], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        unpack(tar, folder)
    if process.returncode:
        raise tarfile.ReadError(f"zstd ended with exit code {process.returncode}")
