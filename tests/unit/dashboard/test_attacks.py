"""Who may not, does not: tokens, other sites, paths, links, sizes, slow clients."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from command_line import make_run
from dashboards import Client, Served, served
from runs import wait_for
from shanty.dashboard import downloads, serving
from shanty.dashboard.guard import Hosts
from shanty.dashboard.serving import Place
from shanty.dashboard.users import Users
from shanty.runtime.errors import LaunchError, ShantyError, UsageError
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import State


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("attacks") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def run(up: Served) -> RunDir:
    """A run of ann's, with something saved."""
    run = make_run(up.here.home, 1, name="anns")
    run.owner.write_text("ann\n")
    (run.artifacts / "folder").mkdir()
    (run.artifacts / "folder" / "a.txt").write_text("hello")
    up.knows(1)
    return run


@pytest.fixture(scope="module")
def admin(up: Served) -> Client:
    return up.admin


@pytest.fixture(scope="module")
def ann(up: Served) -> Client:
    return up.user("ann", "user", "own")


@pytest.fixture(scope="module")
def ben(up: Served) -> Client:
    return up.user("ben", "user", "own")


@pytest.fixture(scope="module")
def eve(up: Served) -> Client:
    """She sees all, and changes nothing."""
    return up.user("eve", "viewer", "all")


@pytest.fixture(scope="module")
def dan(up: Served) -> Client:
    """He sees all, and changes what is his."""
    return up.user("dan", "user", "all")


def paths(client: Client, run: RunDir) -> list[tuple[str, str]]:
    """Every address of the API, with this run for any."""
    described = client.json("/openapi.json")["paths"]
    return [
        (method.upper(), path.removeprefix("/api/v1").format(run_id=run.id, rank="0"))
        for path, methods in described.items()
        for method in methods
    ]


# ------------------------------------------------------------------------------- who asks


@pytest.mark.parametrize("token", ["", "x", "a" * 5000], ids=len)
def test_no_address_answers_without_a_token(
    up: Served, admin: Client, run: RunDir, token: str
) -> None:
    nobody = Client(up.url, token)
    known = paths(admin, run)
    assert len(known) > 20
    for method, path in [*known, ("GET", "/openapi.json")]:
        answer = nobody.send(method, path, {} if method == "POST" else None)
        assert answer.status_code == 401, (method, path)
        assert set(answer.json()) == {"error"}


def test_a_token_counts_in_a_header_alone(up: Served, admin: Client) -> None:
    """Cookies go to the servers on all ports, and what is in an address to logs."""
    token, port = admin.token, up.port
    cookies = f"shanty={token}; shanty-{port}={token}; token={token}; session={token}"
    for path in ("/api/v1/me", "/api/v1/runs/stream"):
        assert up_get(up, path, Authorization=f"Bearer {token}x").status == 401
        answer = up_get(up, path, Cookie=cookies)
        assert (answer.status, "set-cookie" in answer.headers) == (401, False), path
    assert up_get(up, "/api/v1/me", Authorization=f"Bearer {token}").status == 200
    for path in ("/login", "/", "/api/v1/me", "/api/v1/runs", "/logout"):
        for name in ("token", "access_token", "%74oken"):
            answer = up_get(up, f"{path}?next=/&{name}={token}", Authorization=f"Bearer {token}")
            assert answer.status == 400, (path, name)
            assert "#token=TOKEN" in answer.body.decode()
            assert token not in answer.body.decode()
            assert "set-cookie" not in answer.headers
    # What an older version has left in a browser goes on to leak, unless it is taken away.
    page = up_get(up, "/runs/x", Cookie=f"shanty-{port}={token}; other=1")
    name, _, rest = page.headers["set-cookie"].partition("=")
    assert (name, "Max-Age=0" in rest, token in rest) == (f"shanty-{port}", True, False)
    assert "set-cookie" not in up_get(up, "/", Cookie="other=1").headers


def test_an_address_of_a_download_works_once(
    up: Served, run: RunDir, ann: Client, ben: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered(client: Client = ann) -> str:
        answer = client.send("POST", f"/runs/{run.id}/artifacts/raw?path=folder/a.txt")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["url"])

    first, second = offered(), offered()
    assert ann.token not in first
    answer = up_get(up, first)
    assert (answer.status, b"hello" in answer.body) == (200, True)
    assert answer.headers["content-disposition"].startswith("attachment")
    assert up_get(up, first).status == 404
    assert up_get(up, second[:-1]).status == 404
    assert up_get(up, second).status == 200
    monkeypatch.setattr(downloads, "_LIFE", -1.0)
    assert up_get(up, offered()).status == 404
    monkeypatch.undo()
    raw_file = f"/runs/{run.id}/artifacts/raw?path="
    assert ben.send("POST", raw_file + "folder/a.txt").status_code == 404
    assert ann.send("POST", raw_file + "folder/none").status_code == 404
    zoe = up.user("zoe", "viewer", "all")
    last = offered(zoe)
    Users(up.here.home).remove("zoe")
    assert up_get(up, last).status == 401


def test_another_users_run_is_not_there(admin: Client, run: RunDir, ben: Client) -> None:
    assert ben.json("/runs")["total"] == 0
    assert ben.json("/runs")["facets"]["states"] == {}
    assert ben.json("/runs", owner="ann")["total"] == 0
    for method, path in paths(admin, run):
        if run.id in path:
            answer = ben.send(method, path, {} if method == "POST" else None)
            assert answer.status_code in (404, 422), (method, path)
    assert run.path.exists()


def test_who_sees_all_changes_only_what_is_his(
    run: RunDir, ann: Client, dan: Client, eve: Client
) -> None:
    for other in (dan, eve):
        assert other.json("/runs")["total"] == 1
        assert other.json(f"/runs/{run.id}")["owner"] == "ann"
        for method, path, body in (
            ("DELETE", "", None), ("POST", "/stop", {}), ("POST", "/rerun", {}),
            ("POST", "/tags", {"add": ["x"]}), ("POST", "/stacks", None),
        ):  # fmt: skip
            answer = other.send(method, f"/runs/{run.id}{path}", body)
            assert answer.status_code == 403, (method, path)
    for path, body in (("/runs", {"command": "x"}), ("/machines/check", {}), ("/preview", {})):
        assert eve.send("POST", path, body).status_code == 403
    assert eve.json("/me")["read_only"] is True
    assert ann.send("POST", f"/runs/{run.id}/tags", {"add": ["mine"]}).status_code == 200


def test_a_removed_user_is_out_at_once(up: Served) -> None:
    tom = up.user("tom", "admin", "all")
    assert tom.get("/api/v1/me").status_code == 200
    Users(up.here.home).remove("tom")
    assert tom.get("/api/v1/me").status_code == 401


def test_only_hashes_are_kept_and_only_for_the_owner(tmp_path: Path) -> None:
    users = Users(tmp_path)
    token = users.add("ann", "user", "own")
    assert token not in users.file.read_text()
    assert stat.S_IMODE(users.file.stat().st_mode) == 0o600
    with pytest.raises(UsageError):
        users.add("ann", "admin", "all")
    with pytest.raises(UsageError):
        users.add("../x", "admin", "all")
    users.file.chmod(0o644)
    with pytest.raises(ShantyError, match="others may read"):
        users.all()
    users.file.chmod(0o600)
    users.file.write_text('{"users": [{"name": "x"}]}')
    with pytest.raises(ShantyError, match="damaged"):
        Users(tmp_path).all()


# ------------------------------------------------------------------------------ other sites


def test_a_change_needs_a_header_that_no_other_site_can_send(run: RunDir, admin: Client) -> None:
    url = f"{admin.url}/api/v1/runs/{run.id}"
    assert admin.http.delete(url, headers=admin.headers).status_code == 403
    for site in ("cross-site", "same-site"):  # the second is another port of this host
        answer = admin.send("DELETE", f"/runs/{run.id}", None, **{"Sec-Fetch-Site": site})
        assert answer.status_code == 403
    evil = ("https://evil.example", "null", "http://127.0.0.1.evil.example:80", "http://[", "")
    for origin in evil:
        answer = admin.send("DELETE", f"/runs/{run.id}", None, Origin=origin)
        assert answer.status_code == 403, origin
    assert "--allowed-host hub.example" in (
        admin.send("POST", "/preview", {}, Origin="https://hub.example:8443").text
    )
    assert run.path.exists()
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE"}
    answer = admin.http.options(url, headers=asked)
    assert answer.status_code == 403
    asked["Origin"] = "http://127.0.0.1:1"
    answer = admin.http.options(url, headers=asked)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("LOCALHOST.", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("10.0.0.1", 421),
    ],
)  # fmt: skip
def test_the_name_that_a_request_comes_for(
    up: Served, admin: Client, host: str, status: int
) -> None:
    answer = up_get(up, "/api/v1/me", Authorization=f"Bearer {admin.token}", Host=host)
    assert answer.status == status
    if status == 421:
        assert f"--allowed-host {host or 'NAME'}" in answer.body.decode()


@pytest.mark.parametrize("name", ["<b>", "a b", 'x"; rm -rf /', "a" * 70 + "..b"])
def test_an_answer_does_not_repeat_what_is_no_name(up: Served, name: str) -> None:
    answer = up_get(up, "/", Host=name)
    assert answer.status == 421
    assert "--allowed-host NAME" in answer.body.decode()


def test_names_of_a_server_that_others_reach() -> None:
    hosts = Hosts("0.0.0.0", ("shanty.example",))
    for name in (
        "10.0.0.1:8470",
        "[fe80::1]:1",
        "shanty.example",
        os.uname().nodename,
        "localhost",
    ):
        assert hosts.has(name), name
    for name in ("evil.example", "10.0.0.1.nip.io", "shanty.example.evil.example", ""):
        assert not hosts.has(name), name
    assert not Hosts("", ("",)).has("")  # of the origin "null"


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1", True), ("localhost", True), ("127.0.0.2", True), ("127.1", True),
        ("::1", True), ("", True), ("0.0.0.0", False), ("::", False), ("0", False),
    ],
)  # fmt: skip
def test_without_tls_only_this_machine_is_served(host: str, served: bool, tmp_path: Path) -> None:
    with contextlib.ExitStack() as made:
        try:
            listener = made.enter_context(serving.listen(Place(host)))
        except ShantyError as error:
            if host == "::1" and "nothing can be served" in str(error):
                pytest.skip("there is no IPv6 here")
            assert not served
            assert "--tls-cert" in error.fix
            assert "--insecure" in error.fix
        else:
            assert served
            assert ip_address(listener.getsockname()[0]).is_loopback
    for place in (Place(host, insecure=True), Place(host, certificate=tmp_path / "x")):
        with contextlib.suppress(LaunchError), serving.listen(place) as listener:
            assert listener.getsockname()[1]


def test_the_page_runs_no_script_but_its_own(up: Served) -> None:
    answer = up_get(up, "/runs/anything")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    for path in ("/../users.json", "/%2e%2e/app.py", "/assets/../../app.py", "/.gitkeep"):
        answer = up_get(up, path)
        assert b"def " not in answer.body
        assert b"hash" not in answer.body


# ------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "path",
    [
        "../job.json", "folder/../../job.json", "/etc/passwd", "..", ".", "folder/../folder/a.txt",
        "link", "linked/passwd", "linked", "inner/a.txt", "pipe", "socket", "a\0b", "..\\job.json",
        "hard/../../status.json", "x" * 5000, "\ud7ff", "folder/a.txt/b", "zero",
    ],
    ids=range(19),
)  # fmt: skip
def test_no_path_and_no_link_leads_out(run: RunDir, ann: Client, path: str) -> None:
    folder = run.artifacts
    for name, target in (("link", "/etc/passwd"), ("linked", "/etc"), ("inner", "folder"),
                         ("zero", "/dev/zero")):  # fmt: skip
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
        here = socket.socket(socket.AF_UNIX)
        with here:
            at = os.open(folder, os.O_RDONLY)  # its whole path may be too long for a socket
            here.bind(f"/proc/self/fd/{at}/socket")
            os.close(at)
    for address in ("artifacts", "artifacts/raw", "artifacts/preview"):
        answer = ann.get(f"/api/v1/runs/{run.id}/{address}", path=path)
        assert answer.status_code in (404, 422), (address, answer.text[:200])
        assert b"root:" not in answer.content


def test_what_is_saved_is_listed_shown_and_downloaded(run: RunDir, ann: Client) -> None:
    found = ann.json(f"/runs/{run.id}/artifacts", path="folder/")
    assert [(each["name"], each["size"]) for each in found["entries"]] == [("a.txt", 5)]
    names = {each["name"] for each in ann.json(f"/runs/{run.id}/artifacts")["entries"]}
    assert names == {"folder"}  # neither links nor pipes


def test_markup_that_a_run_has_saved_is_never_shown_as_such(run: RunDir, ann: Client) -> None:
    text = "<script>alert(1)</script>"
    for name in ("x.html", "x.svg", "x.png", 'a"b\r\nSet-Cookie: x=1.txt'):
        (run.artifacts / name).write_text(text)
        answer = ann.get(f"/api/v1/runs/{run.id}/artifacts/raw", path=name)
        assert answer.text == text
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in answer.headers
    shown = ann.get(f"/api/v1/runs/{run.id}/artifacts/raw", path="x.png", inline=1)
    assert shown.headers["content-type"] == "image/png"
    shown = ann.get(f"/api/v1/runs/{run.id}/artifacts/raw", path="x.svg", inline=1)
    assert shown.status_code == 422
    for name in ("x.html", "x.svg", "x.png", 'a"b\r\nSet-Cookie: x=1.txt'):
        (run.artifacts / name).unlink()


def test_previews_are_short(run: RunDir, ann: Client) -> None:
    files = {
        "big.txt": "x" * 99 + "\n", "t.csv": "1,2\n", "t.jsonl": '{"a": 1, "b": [2]}\n',
    }  # fmt: skip
    for name, line in files.items():
        (run.artifacts / name).write_text(line * 10_000)
    (run.artifacts / "data.bin").write_bytes(bytes(100))
    address = f"/runs/{run.id}/artifacts/preview"
    text = ann.json(address, path="big.txt")
    assert len(text["text"]) <= 256 << 10
    more = ann.json(address, path="big.txt", offset=text["next"])
    assert more["text"].startswith("xxx")
    table = ann.json(address, path="t.csv")
    assert (table["columns"], len(table["rows"])) == (["1", "2"], 200)
    more = ann.json(address, path="t.csv", offset=table["next"])
    assert (more["columns"], more["rows"][0]) == (None, ["1", "2"])
    table = ann.json(address, path="t.jsonl")
    assert (table["columns"], table["rows"][0]) == (["a", "b"], ["1", "[2]"])
    assert ann.get(f"/api/v1{address}", path="data.bin").status_code == 422
    for name in (*files, "data.bin"):
        (run.artifacts / name).unlink()


@pytest.mark.parametrize(
    "run_id",
    ["last", "..", "%2e%2e", "20240101-000001-bcdf%2f..%2f", "20240101-000001-zzzz", "x" * 300,
     "%00", "20240101-000001-bcd", "%c3%a9"],
    ids=range(9),
)  # fmt: skip
def test_no_other_folder_is_a_run(up: Served, admin: Client, run: RunDir, run_id: str) -> None:
    answer = up_get(up, f"/api/v1/runs/{run_id}/artifacts", Authorization=f"Bearer {admin.token}")
    assert answer.status in (404, 422)


# ------------------------------------------------------------------------ sizes, slow clients


def raw(up: Served, data: bytes) -> bytes:
    """What the server answers to these bytes until it closes."""
    answer = b""
    with up.connected() as line:
        try:
            line.sendall(data)
            while piece := line.recv(65536):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    return answer


def test_huge_headers_and_bodies_are_refused(up: Served, admin: Client) -> None:
    head = f"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin.token}\r\n"
    many = "".join(f"X-{number}: {'a' * 100}\r\n" for number in range(2000))
    answer = raw(up, (head + many + "\r\n").encode())[:20]
    assert b" 400 " in answer or b" 431 " in answer
    one = f"X: {'a' * 100_000}\r\n"
    assert b" 431 " in raw(up, (head + one + "\r\n").encode())[:20]
    target = f"GET /api/v1/runs?search={'a' * 20_000} HTTP/1.1\r\nHost: localhost\r\n"
    assert b" 414 " in raw(up, (target + "Connection: close\r\n\r\n").encode())[:20]
    body = {"command": "x" * (2 << 20)}
    assert admin.send("POST", "/preview", body).status_code == 413
    pieces = (
        b"".join(b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16)) for _ in range(40)) + b"0\r\n\r\n"
    )
    post = (
        f"POST /api/v1/preview HTTP/1.1\r\nHost: localhost\r\nX-Shanty: 1\r\n"
        f"Authorization: Bearer {admin.token}\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ).encode()
    assert b" 200 " not in raw(up, post + pieces)[:20]
    assert b" 400 " in raw(up, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")[:20]
    assert admin.get("/api/v1/me").status_code == 200


def test_deep_and_odd_json_is_refused(admin: Client) -> None:
    url = f"{admin.url}/api/v1/preview"
    headers = {**admin.headers, "X-Shanty": "1", "Content-Type": "application/json"}
    for body in (
        b"[" * 100_000, b"{", b"null", b'{"ranks": 1e999}', b'{"name": "\\ud800"}',
        b'{"command": "a\\u0000b"}', b'{"other": 1}', b'{"ranks": true}', b'{"name": 5}',
        b'{"env": {"A=B": "x"}}', b"\xff",
    ):  # fmt: skip
        answer = admin.http.post(url, content=body, headers=headers)
        assert answer.status_code in (400, 422), body[:40]
        assert json.loads(answer.content)["error"]["what"]


def test_a_request_that_never_ends_is_ended(
    up: Served, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_SLOW", 0.3)
    began = time.monotonic()
    assert raw(up, b"GET /api/v1/me HTTP/1.1\r\nHost: loc") == b""
    assert raw(up, b"") == b""
    head = (
        f"POST /api/v1/preview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {admin.token}"
    )
    with up.connected("GET /api/v1/me") as line:
        assert line.recv(65536).startswith(b"HTTP/1.1 401 ")
        line.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: loc")
        with contextlib.suppress(ConnectionResetError):
            while line.recv(65536):
                pass
    slow = f"{head}\r\nX-Shanty: 1\r\nContent-Length: 100\r\n\r\n{{"
    assert b" 200 " not in raw(up, slow.encode())
    assert time.monotonic() < began + 8
    wait_for(lambda: len(up.server.server_state.connections) <= 2, 5)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has the option")
def test_a_client_that_takes_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_STUCK", 1.0)
    with served(tmp_path / "home") as up:
        run = make_run(tmp_path / "home", 1)
        run.rank_log(0).write_text(f"1.0 1 {'x' * 1000}\n" * 20_000)
        request = f"GET /api/v1/runs/{run.id}/logs/0/download"
        with up.connected(request, up.admin.token) as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wait_for(lambda: up.buffered() > 0)
            wait_for(lambda: not up.server.server_state.connections, 15)


def test_a_page_that_is_open_does_not_keep_the_server(tmp_path: Path) -> None:
    began = 0.0
    with served(tmp_path / "home") as server:
        run = make_run(tmp_path / "home", 1, State.RUNNING)
        me = server.admin
        paths = ("runs/stream", f"runs/{run.id}/stream?ranks=0", "")
        lines = [server.connected(f"GET /api/v1/{path}", me.token) for path in paths]
        wait_for(lambda: server.here.streams["root"] == 2)
        began = time.monotonic()
    assert time.monotonic() < began + 2
    for line in lines:
        line.close()


class Answer:
    """What came back over a plain connection."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in rest)}


def up_get(up: Served, path: str, **headers: str) -> Answer:
    """Ask as no client would: any path, any header."""
    given = {"Host": "localhost", "Connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return Answer(raw(up, f"GET {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1")))
