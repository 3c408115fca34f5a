"""What an API server may answer: it is busy, the token has expired, a watch is too old, nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

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

    def cluster(self, token: str = "good", place: str = "") -> Cluster:
        return Cluster(place, {"KUBECONFIG": str(self.config(token))})

    def config(self, token: str) -> Path:
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


def test_a_token_that_somebody_renews(server: Server) -> None:
    """The kubeconfig is read anew where the credentials are refused."""
    server.answers = [lambda _path, token: (200 if token == "new" else 401, {})]
    cluster = server.cluster("old")
    with pytest.raises(ApiError, match="does not accept your credentials"):
        cluster.call("GET", "/x")
    server.config("new")
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
    with pytest.raises(PrepareError, match="no cluster to go to"):
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
