"""The workspace: which files it has, its hash, and that a host gets exactly what it lacks."""

from __future__ import annotations

import base64
import contextlib
import http.server
import io
import os
import shutil
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shanty.launch.content import sources, workspace
from shanty.launch.content.workspace import listing
from shanty.launch.transport.connection import LocalTransport
from shanty.launch.transport.parallel import Step
from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import NotFoundError, PrepareError, UsageError
from shanty.runtime.rpc import workspaces
from shanty.runtime.site import Host

RUN = "20261121-101112-bcdf.0"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def fill(folder: Path, **files: str | bytes) -> None:
    write(folder, {name.replace("__", "/").replace("_py", ".py"): v for name, v in files.items()})


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "protocol.file.allow=always"]
    return subprocess.run(
        ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def names(folder: Path) -> list[str]:
    return sorted(listing(folder)[0])


# ------------------------------------------------------------------------ which files


def test_without_git_all_but_what_tools_make(here: Path) -> None:
    write(
        here,
        {
            "train.py": "",
            "pkg/a.py": "",
            "pkg/__pycache__/a.pyc": "",
            ".venv/pyvenv.cfg": "",
            "my env/pyvenv.cfg": "",
            "my env/lib/x.py": "",
            "conda/conda-meta/history": "",
            "conda/bin/python": "",
            "web/node_modules/x.js": "",
            ".hidden": "",
        },
    )
    assert names(here) == [".hidden", "pkg/a.py", "train.py"]


def test_with_git_what_is_tracked_or_not_ignored(here: Path) -> None:
    git(here, "init", "-q")
    write(
        here,
        {
            ".gitignore": "*.log\ndata/\n",
            "train.py": "",
            "gone.py": "",
            "kept.log": "",
            "x.log": "",
            "data/big": "",
            "bücher.py": "",
            "env/pyvenv.cfg": "",
            "env/lib/x.py": "",
        },
    )
    git(here, "add", "-f", "train.py", "gone.py", "kept.log")
    (here / "gone.py").unlink()
    content = workspace.manifest(here)
    assert [f.path for f in content.files] == [".gitignore", "bücher.py", "kept.log", "train.py"]
    write(here, {"sub/deep/a.py": "", "sub/b.log": ""})
    assert names(here / "sub") == ["deep/a.py"]


def test_submodules_and_repositories_within(here: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for folder in (here, other):
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q")
    write(other, {"lib.py": "x"})
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    git(here, "submodule", "--quiet", "add", str(other), "vendor/lib")
    git(here, "clone", "-q", str(other), "nested")
    write(here / "nested", {"new.py": "", "x.pyc/__pycache__/y": ""})
    found = names(here)
    assert {"vendor/lib/lib.py", "nested/lib.py", "nested/new.py", ".gitmodules"} <= set(found)
    assert not [path for path in found if "/.git/" in path or "__pycache__" in path]


def test_a_folder_that_an_outer_work_tree_ignores_is_taken_whole(here: Path) -> None:
    git(here, "init", "-q")
    write(here, {".gitignore": "*\n", "project/train.py": ""})
    assert names(here / "project") == ["train.py"]


@pytest.mark.parametrize("repository", [True, False])
def test_shantyignore(here: Path, repository: bool) -> None:
    if repository:
        git(here, "init", "-q")
    write(
        here,
        {
            ".shantyignore": "# big\n/data/\n*.bin\n!keep.bin\n",
            "train.py": "",
            "data/x": "",
            "sub/data/x": "",
            "a.bin": "",
            "keep.bin": "",
            "sub/.shantyignore": "!a.bin\n*.txt\n",
            "sub/a.bin": "",
            "sub/x.txt": "",
            "x.txt": "",
        },
    )
    expected = ["keep.bin", "sub/.shantyignore", "sub/a.bin", "sub/data/x", "train.py", "x.txt"]
    assert names(here) == [".shantyignore", *expected]


# --------------------------------------------------------------------------- manifest


def test_the_hash_says_content_name_mode_and_links(here: Path) -> None:
    fill(here, a_py="1", b_py="2")
    hashes = {workspace.manifest(here).hash}
    (here / "a.py").chmod(0o755)
    hashes.add(workspace.manifest(here).hash)
    (here / "a.py").write_text("3")
    hashes.add(workspace.manifest(here).hash)
    (here / "c").symlink_to("a.py")
    hashes.add(workspace.manifest(here).hash)
    (here / "b.py").rename(here / "d.py")
    hashes.add(workspace.manifest(here).hash)
    assert len(hashes) == 5
    os.utime(here / "a.py", (1, 1))
    assert workspace.manifest(here).hash in hashes


def test_hashes_are_kept_only_of_files_that_are_as_they_were(here: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "hashes.json"
    fill(here, old_py="1", new_py="2")
    assert workspace.manifest(here, cache).hash == workspace.manifest(here).hash
    assert cache.read_text() == "{}\n"  # all have just been made, and may change unseen
    old = time.time_ns() + 3_000_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: old)
        workspace.manifest(here, cache)
    assert "old.py" in cache.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "_digest", lambda *_: pytest.fail("was read again"))
        assert workspace.manifest(here, cache).hash
    (here / "old.py").write_text("3")
    assert workspace.manifest(here, cache).hash == workspace.manifest(here).hash


def test_what_the_user_should_know(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "LARGE_COUNT", 3)
    fill(here, data__a="1", data__b="22", data__c="", train_py="")
    (here / "shared").symlink_to("/data/all")
    (here / "inside").symlink_to("data/a")
    os.mkfifo(here / "pipe")
    heard: list[str] = []
    notes = workspace.manifest(here, say=heard.append).notes
    assert heard == list(notes)
    text = "\n".join(notes)
    assert "pipe is not a regular file" in text and "shared is a link to /data/all" in text
    assert "data/ (3 files" in text and ".shantyignore" in text and "inside" not in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_named(here: Path) -> None:
    fill(here, secret_py="x")
    (here / "secret.py").chmod(0)
    with pytest.raises(PrepareError, match=r"secret\.py cannot be read"):
        workspace.manifest(here)


# --------------------------------------------------------------------------- the hosts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the "host" keeps all."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def client(home: Path) -> Iterator[RpcClient]:
    client = RpcClient.connect(LocalTransport(Host("here")))
    yield client
    client.close()


def send(client: RpcClient, folder: Path, user: str = "") -> str:
    return workspace.send(client, workspace.manifest(folder), folder, user)


def tree(path: Path | str) -> dict[str, object]:
    found: dict[str, object] = {}
    for file in Path(path).rglob("*"):
        name = str(file.relative_to(path))
        if file.is_symlink():
            found[name] = file.readlink()
        elif file.is_file():
            found[name] = (file.read_bytes(), bool(file.stat().st_mode & 0o100))
    return found


def test_a_tree_arrives_as_it_is_and_is_sent_once(
    here: Path, client: RpcClient, home: Path
) -> None:
    write(here, {"train.py": "x", "run": "#!/bin/sh", "empty": "", "z/empty": "", "a/b/twin": "x"})
    write(here, {"z/big": os.urandom(20 << 20), "text": "line\n" * 1_000_000})
    (here / "run").chmod(0o755)
    (here / "odd\udcff name\n").write_text("odd")
    (here / "link").symlink_to("a/b")
    before = client.bytes_sent
    first = send(client, here)
    assert tree(first) == tree(here)
    sent = client.bytes_sent - before
    assert 20 << 20 < sent < 22 << 20  # the text is deflated
    assert send(client, here) == first and client.bytes_sent - before - sent < 200
    assert [p.name for p in (home / "workspaces").iterdir()] == [workspace.manifest(here).hash]


def test_only_what_is_new_is_sent_and_small_files_are_no_links(
    here: Path, client: RpcClient
) -> None:
    write(here, {"big": os.urandom(4 << 20), "small": "s", "train.py": "1"})
    first = Path(send(client, here))
    write(here, {"train.py": "2", "big copy": (here / "big").read_bytes()})
    before = client.bytes_sent
    second = Path(send(client, here))
    assert client.bytes_sent - before < 2000
    assert tree(second) == tree(here) and tree(first)["train.py"] == (b"1", False)
    assert (second / "big").samefile(first / "big")
    assert not (second / "small").samefile(first / "small")


@pytest.mark.parametrize(
    "change",
    [
        lambda p: (p / "train.py").write_text("evil"),
        lambda p: (p / "train.py").unlink(),
        lambda p: (p / "train.py").chmod(0o755),
        lambda p: os.utime(p / "big", (1, 1)),
        lambda p: [(p / "link").unlink(), (p / "link").symlink_to("elsewhere")],
        lambda p: [(p / "train.py").unlink(), (p / "train.py").symlink_to("/etc/passwd")],
    ],
)
def test_a_tree_that_a_run_has_changed_is_not_used_again(
    here: Path, client: RpcClient, change: object
) -> None:
    write(here, {"big": os.urandom(2 << 20), "small": "s", "train.py": "1"})
    (here / "link").symlink_to("small")
    first = send(client, here)
    change(Path(first))  # type: ignore[operator]
    second = send(client, here)
    assert second != first and tree(second) == tree(here)
    assert send(client, here) == second  # and this one is


def test_what_a_run_adds_does_no_harm(here: Path, client: RpcClient) -> None:
    write(here, {"train.py": "1"})
    first = send(client, here)
    write(Path(first), {"__pycache__/train.pyc": "", "result.csv": "1"})
    assert send(client, here) == first


def test_a_file_that_changes_meanwhile(here: Path, client: RpcClient, home: Path) -> None:
    write(here, {"a.py": "1", "log": "1" * 100})
    content = workspace.manifest(here)
    write(here, {"log": "2" * 100})
    with pytest.raises(PrepareError, match="log was changed"):
        workspace.send(client, content, here)
    assert tree(send(client, here)) == tree(here)
    client.close()
    assert len(list((home / "workspaces").iterdir())) == 1


def test_one_change_meanwhile_is_no_error(
    here: Path, client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, {"a.py": "1"})
    real = workspace.manifest

    def manifest(folder: Path, *rest: object) -> workspace.Manifest:
        content = real(folder)
        if (here / "a.py").read_text() == "1":
            write(here, {"a.py": "2"})
        return content

    monkeypatch.setattr(workspace, "manifest", manifest)
    content, placed = workspace.place([client], here, print, users={"here": RUN})
    path = Path(placed["here"])
    assert (path.parent / "users" / RUN).is_file()
    assert (path / "a.py").read_text() == "2"
    assert content.hash == real(here).hash


def test_two_hosts_with_one_home_at_once(here: Path, home: Path) -> None:
    write(here, {"a.py": "1", "big": os.urandom(3 << 20)})
    clients = [RpcClient.connect(LocalTransport(Host(name))) for name in ("one", "two", "three")]
    try:
        steps: list[Step] = []
        _, placed = workspace.place(clients, here, steps.append)
    finally:
        for client in clients:
            client.close()
    assert list(placed) == ["one", "two", "three"]
    assert {step.host for step in steps} <= set(placed) and steps[-1].done == steps[-1].total
    assert len(set(placed.values())) == 1
    assert tree(placed["one"]) == tree(here)
    assert len(list((home / "workspaces").iterdir())) == 1


def test_pruned_is_the_longest_unused_that_nobody_needs(
    here: Path, client: RpcClient, home: Path
) -> None:
    paths = []
    for number in range(5):
        write(here, {"train.py": str(number)})
        paths.append(Path(send(client, here, f"20261121-101112-bcd{number}.0")))
        os.utime(paths[-1].parent, (number + 1e9, number + 1e9))
    (home / "work" / "20261121-101112-bcd0.0").mkdir(parents=True)
    for path in paths:
        for mark in (path.parent / "users").iterdir():
            os.utime(mark, (1, 1))
    write(paths[1], {"model.pt": "mine"})
    now = time.time()
    os.utime(paths[1].parent, (now - 86400, now - 86400))
    os.utime(paths[4].parent, (now, now))
    workspaces.prune(1)
    assert [path.exists() for path in paths] == [True, True, False, False, True]
    os.utime(paths[1].parent, (2e9 - 1e9, 1e9))  # long ago: even what a run wrote is let go
    workspaces.prune(1)
    assert [path.exists() for path in paths] == [True, False, False, False, True]


contents = st.dictionaries(
    st.sampled_from(["a", "b.py", "c/d", "c/e", "f g/h\n", "ü"]),
    st.sampled_from([b"", b"1", b"2", b"x" * (1 << 20)]),
    min_size=1,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions=st.lists(contents, min_size=1, max_size=4))
def test_whatever_was_there_before_the_tree_is_the_folder(
    client: RpcClient, tmp_path_factory: pytest.TempPathFactory, versions: list[dict[str, bytes]]
) -> None:
    for files in versions:
        folder = tmp_path_factory.mktemp("version")
        write(folder, dict(files))
        assert tree(send(client, folder)) == tree(folder)


# ---------------------------------------------------------------------------- sources


def test_a_folder_is_itself_and_nothing_is_an_error(here: Path, tmp_path: Path) -> None:
    assert sources.open_workspace(str(here), tmp_path) == here.resolve()
    with pytest.raises(NotFoundError):
        sources.open_workspace(str(here / "nothing"), tmp_path)
    (here / "x.txt").touch()
    for bad in (str(here / "x.txt"), "https://example.org/page"):
        with pytest.raises(UsageError, match="not a workspace"):
            sources.open_workspace(bad, tmp_path)
    (here / "x.zip").write_text("no zip")
    with pytest.raises(PrepareError, match="cannot be unpacked"):
        sources.open_workspace(str(here / "x.zip"), tmp_path)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst"])
def test_archives(here: Path, tmp_path: Path, suffix: str) -> None:
    write(here, {"top/train.py": "1", "top/run": "2"})
    (here / "top" / "run").chmod(0o755)
    archive = tmp_path / f"x{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name in ("top/train.py", "top/run"):
                file.write(here / name, name)
    else:
        write(here, {"top/pkg/a.py": "3"})
        (here / "top/pkg/link").symlink_to("../run")
        os.link(here / "top/run", here / "top/twin")
        packing = {".tar": "w", ".tar.zst": "w", ".tar.xz": "w:xz"}.get(suffix, "w:gz")
        with tarfile.open(archive, packing) as tar:
            tar.add(here / "top", "top")
    if suffix == ".tar.zst":
        if shutil.which("zstd") is None:
            pytest.skip("there is no zstd here")
        plain = archive.rename(tmp_path / "x.tar")
        subprocess.run(["zstd", "-q", "--rm", plain, "-o", archive], check=True)
    folder = sources.open_workspace(str(archive), tmp_path / "home")
    assert folder.name == "top" and tree(folder) == tree(here / "top")
    assert sources.open_workspace(str(archive), tmp_path / "home") == folder


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, target, 0o755
    return made


EVIL = [
    [member("../evil")],
    [member("a/../../evil")],
    [member("x"), member("/tmp/evil", tarfile.DIRTYPE), member("link", tarfile.SYMTYPE, "/etc")],
    [member("link", tarfile.SYMTYPE, "../../..")],
    [member("here", tarfile.SYMTYPE, "."), member("here/up", tarfile.SYMTYPE, "../..")],
    [member("link", tarfile.SYMTYPE, "/etc"), member("link/evil")],
    [member("hard", tarfile.LNKTYPE, "../../../etc/passwd")],
    [member("pipe", tarfile.CHRTYPE)],
]


@pytest.mark.parametrize("members", EVIL, ids=lambda members: "+".join(one.name for one in members))
def test_a_tar_stays_in_its_folder(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for entry in members:
            tar.addfile(entry, io.BytesIO())
    with pytest.raises(PrepareError):
        sources.open_workspace(str(tmp_path / "x.tar"), tmp_path / "home")
    assert not list((tmp_path / "home" / "cache" / "sources").iterdir())


def test_a_tar_keeps_empty_folders_and_the_last_of_a_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(member("checkpoints", tarfile.DIRTYPE))
        for text in (b"old", b"newer"):
            entry = member("train.py")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    folder = sources.open_workspace(str(tmp_path / "x.tar"), tmp_path / "home")
    assert (folder / "checkpoints").is_dir()
    assert (folder / "train.py").read_text() == "newer"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_a_zip_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr(name, "x")
    with pytest.raises(PrepareError, match="is not unpacked"):
        sources.open_workspace(str(tmp_path / "x.zip"), tmp_path / "home")
    assert not list((tmp_path / "home" / "cache" / "sources").iterdir())


def test_git_urls(here: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repo.git"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    write(repository, {"train.py": "1"})
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "1")
    git(repository, "tag", "-a", "v1", "-m", "1")
    commit = git(repository, "rev-parse", "HEAD").strip()
    write(repository, {"train.py": "2"})
    git(repository, "commit", "-qam", "2")
    url = f"file://{repository}"

    def content(ref: str) -> str:
        folder = sources.open_workspace(url + ref, tmp_path / "home")
        assert names(folder) == ["train.py"]
        return (folder / "train.py").read_text()

    assert content("") == content("@main") == "2"
    assert content("@v1") == content("@" + commit) == content("@" + commit[:8]) == "1"
    write(repository, {"train.py": "3"})
    git(repository, "commit", "-qam", "3")
    assert content("") == "3"
    with pytest.raises(NotFoundError, match="no branch or tag"):
        content("@nothing")
    with pytest.raises(PrepareError, match="git could not fetch"):
        sources.open_workspace(f"file://{tmp_path}/none.git", tmp_path / "home")


def test_an_archive_at_a_url(here: Path, tmp_path: Path) -> None:
    write(here, {"top/train.py": "1"})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.write(here / "top/train.py", "top/train.py")

    with served(tmp_path) as url:
        folder = sources.open_workspace(f"{url}/x.zip?a=b", tmp_path / "home")
        assert tree(folder) == tree(here / "top")
        with pytest.raises(PrepareError, match="404"):
            sources.open_workspace(f"{url}/none.zip", tmp_path / "home")
    left = list((tmp_path / "home" / "cache" / "sources").iterdir())
    assert len(left) == 1


@contextlib.contextmanager
def served(folder: Path, login: str = "") -> Iterator[str]:
    """A web server for the folder, which wants the login USER:PASSWORD if there is one."""
    wanted = f"Basic {base64.b64encode(login.encode()).decode()}"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def send_head(self) -> Any:
            if not login or self.headers.get("Authorization") == wanted:
                return super().send_head()
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="code"')
            self.end_headers()
            return None

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("name", ["x.zip", "repo.git"])
def test_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(site / "x.zip", "w") as file:
        file.writestr("train.py", "1")
    (tmp_path / "repo").mkdir()
    git(tmp_path / "repo", "init", "-q", "-b", "main")
    write(tmp_path / "repo", {"train.py": "1"})
    git(tmp_path / "repo", "add", ".")
    git(tmp_path / "repo", "commit", "-qm", "1")
    git(tmp_path, "clone", "-q", "--bare", "repo", str(site / "repo.git"))
    git(site / "repo.git", "update-server-info")
    seen: list[list[str]] = []
    really = subprocess.run

    def watched(words: list[str], **more: Any) -> Any:
        seen.append(words)
        return really(words, **more)

    monkeypatch.setattr(sources.subprocess, "run", watched)
    monkeypatch.setenv("GIT_TERMINAL_PROMPT", "0")  # nobody is there to be asked
    with served(site, "ann:hunter2") as url:
        folder = sources.open_workspace(f"{url}/{name}", tmp_path, login=("ann", "hunter2"))
        assert (folder / "train.py").read_text() == "1"
        for login in (None, ("ann", "wrong")):
            with pytest.raises(PrepareError) as error:
                sources.open_workspace(f"{url}/{name}", tmp_path / "other", login=login)
            assert "wrong" not in str(error.value)
    assert not [words for words in seen if "hunter2" in str(words)]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_what_shanty_keeps_is_no_part_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is typed in one's home does not send ~/.shanty along."""
    monkeypatch.setenv("SHANTY_HOME", str(tmp_path / "kept"))
    (tmp_path / "kept" / "runs").mkdir(parents=True)
    (tmp_path / "kept" / "runs" / "log").write_text("x")
    (tmp_path / "kept-too").write_text("x")
    (tmp_path / "train.py").write_text("x")
    assert [file.path for file in workspace.manifest(tmp_path).files] == ["kept-too", "train.py"]
