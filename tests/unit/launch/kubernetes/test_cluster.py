"""What an API server may answer: it is busy, the token has expired, a watch is too old, nobody."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from shanty.launch.kubernetes import cluster as cluster_module
from shanty.launch.kubernetes.cluster import ApiError, Cluster, UnreachableError
from shanty.launch.kubernetes.pods import RunPods
from shanty.runtime.errors import PrepareError

RUN = "20261125-120000-abcd"


@dataclass
class Server:
    """An API server that answers as it is told; `asked` are the requests so far."""

    port: int
    folder: Path
    answers: list[Callable[[str, str], tuple[int, Any]]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def cluster(self, token: str = "good", place: str = "", **changes: Any) -> Cluster:
        return Cluster(place, {"KUBECONFIG": str(self.config(token, **changes))})

    def config(self, token: str, **changes: Any) -> Path:
        address = f"http://127.0.0.1:{self.port}"
        path = self.folder / "config"
        context = {"cluster": "c", "user": "u", "namespace": "team"}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "here",
                    "clusters": [{"name": "c", "cluster": {"server": address}}],
                    "users": [{"name": "u", "user": {"token": token}}],
                    "contexts": [{"name": "here", "context": context}],
                    **changes,
                }
            )
        )  # fmt: skip
        return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            token = (self.headers.get("authorization") or "").rpartition(" ")[2]
            state.asked.append((self.command, self.path))
            step = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            code, body = step(self.path, token)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(data)))
            if code == 429:
                self.send_header("retry-after", "0")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_words: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(http.server_address[1], tmp_path)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield state
    http.shutdown()
    http.server_close()


def always(code: int, body: Any) -> Callable[[str, str], tuple[int, Any]]:
    return lambda _path, _token: (code, body)


def test_it_is_asked_again_while_it_is_busy(server: Server) -> None:
    server.answers = [always(429, {}), always(503, {}), always(200, {"items": [1]})]
    cluster = server.cluster()
    assert cluster.place == "here/team"
    assert cluster.call("GET", cluster.path("pods"))["items"] == [1]
    assert [path for _, path in server.asked] == ["/api/v1/namespaces/team/pods"] * 3


def test_another_namespace(server: Server) -> None:
    server.answers = [always(200, {})]
    assert server.cluster(place="here/other").path("pods", "p") == "/api/v1/namespaces/other/pods/p"
    assert server.cluster(place="/other").namespace == "other"
    assert server.cluster(place="here").namespace == "team"
    with pytest.raises(PrepareError, match="no context nowhere"):
        server.cluster(place="nowhere")


ARN = "arn:aws:eks:eu-west-1:1:cluster/prod"


@pytest.mark.parametrize(
    ("place", "context", "namespace"),
    [(ARN, ARN, "team"), (f"{ARN}/other", ARN, "other"), (f"{ARN}/", ARN, "team")],
)
def test_names_of_contexts_with_a_slash(
    server: Server, place: str, context: str, namespace: str
) -> None:
    """As those of EKS and OpenShift; another one than named need not be there."""
    own = {"name": ARN, "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    changes = {"contexts": [own], "current-context": "gone"}
    found = server.cluster(place=place, **changes)
    assert (found.context, found.namespace) == (context, namespace)
    with pytest.raises(PrepareError, match="no context gone"):
        server.cluster(**changes)


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {**EXEC, "command": "no-such-plugin"}}, "gives no credentials.*No such file"),
        ({"exec": {**EXEC, "command": "false"}}, "gives no credentials.*process returned 1"),
        ({"auth-provider": {"name": "gcp", "config": {}}}, "cannot be used"),
    ],
)
def test_credentials_that_cannot_be_had(
    server: Server, user: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PrepareError) as caught:
        server.cluster(users=[{"name": "u", "user": user}])
    assert re.search(said, f"{caught.value.what} {caught.value.why}"), caught.value
    assert capfd.readouterr().err == ""  # where the library would say it


def test_a_proxy_that_the_client_does_not_know(server: Server) -> None:
    cluster = {"server": "http://127.0.0.1:1", "proxy-url": "socks5://127.0.0.1:1"}
    with pytest.raises(PrepareError):
        server.cluster(clusters=[{"name": "c", "cluster": cluster}]).call("GET", "/x", retries=0)


def test_what_is_no_api_server(server: Server) -> None:
    server.answers = [always(200, b"<html>Sign in</html>")]
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        server.cluster().call("GET", "/x")
    assert "<html>Sign in" in caught.value.why


def test_a_server_that_stays_busy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """That says nothing of the request: it is no refusal."""
    monkeypatch.setattr(cluster_module, "_BACKOFF", 0.0)
    server.answers = [always(503, {"message": "starting"})]
    with pytest.raises(UnreachableError) as caught:
        server.cluster().call("GET", "/x")
    assert "HTTP 503: starting" in caught.value.why


def test_a_websocket_that_nobody_answers(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.port = silent.getsockname()[1]
        with pytest.raises(UnreachableError):
            server.cluster().websocket("/exec", [("command", "true")])


def test_an_object_that_meets_another_request(server: Server) -> None:
    """A quota that is being changed is 409, too, and says nothing of the object."""
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    busy = always(409, {"reason": "Conflict", "message": "the object has been modified"})
    server.answers = [busy, always(201, {"made": 1})]
    assert server.cluster().create(made) == {"made": 1}
    server.answers = [always(409, {"reason": "AlreadyExists"})]
    assert server.cluster().create(made) is made


def test_a_token_that_somebody_renews(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig is read anew where the credentials are refused, and not at every request."""
    server.answers = [lambda _path, token: (200 if token == "new" else 401, {})]
    cluster = server.cluster("old")
    with pytest.raises(ApiError, match="does not accept your credentials"):
        cluster.call("GET", "/x")
    server.config("new")
    with pytest.raises(ApiError):
        cluster.call("GET", "/x")
    monkeypatch.setattr(cluster_module, "_RENEWED", 0.0)
    assert cluster.call("GET", "/x") == {}


def test_what_is_refused_is_said(server: Server) -> None:
    server.answers = [always(403, {"message": "pods is forbidden", "reason": "Forbidden"})]
    with pytest.raises(ApiError) as caught:
        server.cluster().call("GET", "/x")
    assert (caught.value.status, caught.value.why) == (403, "pods is forbidden")
    assert "shanty k8s role" in caught.value.fix
    server.answers = [always(500, b"<html>oops</html>")]
    with pytest.raises(ApiError, match="HTTP 500"):
        server.cluster().call("GET", "/x", retries=1)


def test_nobody_answers(server: Server, tmp_path: Path) -> None:
    server.port = 1
    with pytest.raises(UnreachableError, match="does not answer"):
        server.cluster().call("GET", "/x", retries=0)


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="no Kubernetes cluster is configured"):
        Cluster("", {"KUBECONFIG": str(tmp_path / "none")})
    (tmp_path / "bad").write_text("contexts: [")
    with pytest.raises(PrepareError):
        Cluster("", {"KUBECONFIG": str(tmp_path / "bad")})


def pod(version: str, **status: Any) -> dict[str, Any]:
    metadata = {"name": "p", "resourceVersion": version}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}


def listed(*pods: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(pods)}


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def test_a_watch_is_begun_anew(server: Server) -> None:
    """Its end, a version that is too old, and a server that is away for a moment."""
    failed = pod("3", phase="Failed", reason="Evicted", message="low on memory")
    gone = {"code": 410, "message": "too old"}

    def answer(path: str, _token: str) -> tuple[int, Any]:
        if "watch=1" not in path:
            return 200, listed(pod("1", phase="Pending"))
        if "resourceVersion=1" in path:
            steps.append(path)
            if len(steps) == 1:
                return 200, event("ERROR", gone)
            if len(steps) == 2:
                return 200, event("MODIFIED", pod("2", phase="Running"))
        return 200, event("MODIFIED", failed) if "resourceVersion=2" in path else b""

    steps: list[str] = []
    server.answers = [answer]
    pods = RunPods(server.cluster(), RUN).start()
    trouble = pods.wait_for(lambda: pods.trouble_of("p"), 10)
    pods.close()
    assert trouble is not None and "was evicted" in trouble.what
    assert pods.trouble_of("another") is not None  # it is gone since before we looked


def test_a_pod_that_goes_is_remembered(server: Server) -> None:
    def answer(path: str, _token: str) -> tuple[int, Any]:
        if "watch=1" not in path:
            return 200, listed(pod("1", phase="Running"))
        return 200, event("DELETED", pod("2", phase="Running")) if "Version=1" in path else b""

    server.answers = [answer]
    pods = RunPods(server.cluster(), RUN).start()
    trouble = pods.wait_for(lambda: pods.trouble_of("p"), 10)
    pods.close()
    assert trouble is not None and trouble.what == "pod p on node n was deleted"
    assert pods.pods == {}
