"""The API of one cluster, in one of its namespaces, by the official client's configuration.

`kubernetes` (the package) reads kubeconfig files, runs credential plugins and refreshes tokens; it
is imported when a cluster is needed, and by nothing else. Objects are plain JSON as in the manual.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from shanty.runtime.errors import PrepareError

Object = dict[str, Any]

PATIENCE = 30.0  # seconds for an answer
_CONNECTING = 8.0  # seconds for a connection
_RETRIES = 6  # of a request that the server could not take at the moment
_BACKOFF = 0.2  # seconds before the first of them, then twice as many each time
_TEMPORARY = (429, 500, 502, 503, 504)
_UNABLE = (429, 502, 503, 504)  # those that say nothing of the request itself
_WATCHED = 240  # seconds after which a watch is begun again, so that a dead one is noticed
_RENEWED = 30.0  # seconds between two renewals of credentials
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # seconds, tries
_CONFLICT, _GONE = 409, 404  # of HTTP
_TRIES, _PAUSE = 5, 0.5  # of a request that met another one (a quota's), and seconds between them
_PLURALS = {
    "Job": "jobs", "ConfigMap": "configmaps", "Secret": "secrets", "MPIJob": "mpijobs",
    "TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes",
}  # fmt: skip
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXTRA = "pip install 'kubernetes>=30' (shanty's extra of that name)"


class ApiError(PrepareError):
    """The cluster has refused a request, with the `status` of HTTP, a `reason` and a `message`."""

    def __init__(self, what: str, why: str, fix: str, status: int, reason: str) -> None:
        super().__init__(what, why, fix)
        self.status = status
        self.reason = reason
        self.message = why


class UnreachableError(PrepareError):
    """The API server does not answer."""


class Cluster:
    """One cluster, by a context of the user's kubeconfig; any thread may ask it."""

    def __init__(self, place: str, environ: Mapping[str, str]) -> None:
        """`place` is "CONTEXT/NAMESPACE", either empty for the current one, or a context.

        PrepareError where the context or the client library is missing.
        """
        self.requests = 0  # that were made, those for WebSockets too
        self._environ = environ
        self._lock = threading.Lock()
        self._renewed = 0.0
        self._configuration: Any = None
        self.context, self.namespace = self._load(place)

    @property
    def place(self) -> str:
        """ "CONTEXT/NAMESPACE"."""
        return f"{self.context}/{self.namespace}"

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self._configuration.host)

    # ------------------------------------------------------------------- who we are there

    def _load(self, place: str) -> tuple[str, str]:
        """Read the kubeconfig, or a pod's own account; returns the context and the namespace."""
        try:
            from kubernetes import client
        except ImportError as error:
            raise lacks_client(error) from error
        files = self._environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        here = any(Path(path).expanduser().is_file() for path in files.split(":") if path)
        context = place.rpartition("/")[0] if "/" in place else place
        mounted = (_SERVICE_ACCOUNT / "token").exists() and not here and not context
        if not here and not mounted:
            raise PrepareError(
                "no Kubernetes cluster is configured", f"{files} does not exist",
                "get a kubeconfig from the administrator of the cluster, and name it in KUBECONFIG",
            )  # fmt: skip
        configuration = client.Configuration()
        configuration.socket_options = _socket_options()
        try:
            if mounted:
                found = _of_pod(configuration)
            else:
                found = _of_kubeconfig(configuration, files, place)
            self._take(configuration)
        except PrepareError:
            raise
        except Exception as error:  # the library has no one kind for what may be wrong there
            source = "this pod's account" if mounted else files
            why = str(error) or type(error).__name__
            fix = "see what `kubectl cluster-info` says"
            raise PrepareError(f"{source} cannot be used", why, fix) from error
        namespace = place.rpartition("/")[2] if found[0] != place and "/" in place else ""
        return found[0], namespace or found[1]

    def _take(self, configuration: Any) -> None:
        from kubernetes.client import ApiClient

        self._configuration = configuration
        self._pool = ApiClient(configuration).rest_client.pool_manager

    def _headers(self) -> dict[str, str]:
        try:
            with self._lock:  # a credential plugin is asked once
                bearer = self._configuration.auth_settings().get("BearerToken")
                if bearer is not None:
                    return {"authorization": bearer["value"]}
                if self._configuration.username:
                    return {"authorization": self._configuration.get_basic_auth_token()}
        except Exception as error:  # whatever a credential plugin, or its service, does
            raise UnreachableError(
                f"no credentials for the cluster {self.context}", str(error),
                "log in again, as your cluster's manual says (kubectl get pods must work)",
            ) from error  # fmt: skip
        return {}  # a client's certificate

    def websocket(self, path: str, query: list[tuple[str, str]]) -> Any:
        """A WebSocket to a subresource as `exec`; raises as `call`."""
        from urllib.parse import urlencode

        from websocket import WebSocketBadStatusException, WebSocketException

        url = f"{self.server}{path}?{urlencode(query)}".replace("http", "ws", 1)
        for last in (False, True):
            self.requests += 1
            own = self._headers()
            headers = {"sec-websocket-protocol": "v4.channel.k8s.io", **own}
            try:
                return _websocket(self._configuration, url, headers)
            except WebSocketBadStatusException as error:
                if error.status_code == 401 and not last and self._renew(own):
                    continue
                if error.status_code in _UNABLE:
                    raise self._silent(error) from error
                body = error.resp_body or b""
                raise _refused(error.status_code, body, self.place) from error
            except (WebSocketException, OSError, ValueError) as error:
                raise self._silent(error) from error
        raise AssertionError

    def _renew(self, used: Mapping[str, str]) -> bool:
        """Read the credentials again, which may have been renewed; False where that does not help.

        `used` are those that were not accepted: another thread may have others by now.
        """
        with self._lock:
            due = time.monotonic() > self._renewed + _RENEWED or not self._renewed
            if due:
                self._renewed = time.monotonic()
                try:
                    self._load(self.place)
                except PrepareError:
                    return False
        return due or self._headers() != used

    def _silent(self, error: Exception | str) -> UnreachableError:
        reason = getattr(error, "reason", None) or error
        return UnreachableError(
            f"the cluster {self.context or 'that this pod is in'} does not answer",
            f"{self.server}: {reason}",
            "check the network, a VPN, and that the cluster is up: kubectl cluster-info",
        )

    # ------------------------------------------------------------------------------ asking

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = "application/json",
        retries: int = _RETRIES,
    ) -> Object:
        """Make a request and return what came; waits and asks again where the server is busy.

        ApiError where it is refused, UnreachableError where nobody answers.
        """
        answer = self._ask(method, path, body, kind, retries).data
        try:
            return dict(json.loads(answer or "{}"))
        except (ValueError, TypeError) as error:  # a proxy's page, most often
            said = bytes(answer[:80]).decode(errors="replace")
            raise self._silent(f"the server that answers is not an API server: {said!r}") from error

    def stream(self, path: str) -> Iterator[bytes]:
        """What a GET returns, piece by piece as it comes: logs, a watch. Raises as `call`."""
        import urllib3

        answer = self._ask("GET", path, None, "", 0, whole=False)
        try:
            yield from answer.stream(decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(error) from error
        finally:
            answer.close()

    def _ask(
        self,
        method: str,
        path: str,
        body: Object | None,
        kind: str,
        retries: int,
        *,
        whole: bool = True,
    ) -> Any:
        import urllib3

        patience = PATIENCE if whole else _WATCHED + PATIENCE
        policy = urllib3.Retry(
            retries, connect=min(2, retries), read=min(2, retries), backoff_factor=_BACKOFF,
            status_forcelist=_TEMPORARY, allowed_methods=None, raise_on_status=False,
            respect_retry_after_header=False,
        )  # fmt: skip
        for last in (False, True):
            self.requests += 1
            own = self._headers()
            headers = {"accept": "application/json, */*", **own}
            if body is not None:
                headers["content-type"] = kind
            try:
                answer = self._pool.request(
                    method, self.server + path, headers=headers, retries=policy,
                    body=None if body is None else json.dumps(body).encode(),
                    timeout=urllib3.Timeout(connect=_CONNECTING, read=patience),
                    preload_content=whole,
                )  # fmt: skip
            except (urllib3.exceptions.HTTPError, ValueError) as error:  # of bad characters, too
                raise self._silent(error) from error
            if answer.status == 401 and not last and self._renew(own):
                continue
            if answer.status >= 400:
                refused = _refused(answer.status, _body_of(answer), self.place)
                if answer.status in _UNABLE:  # still, after all retries
                    raise self._silent(f"HTTP {answer.status}: {refused.why}")
                raise refused
            return answer
        raise AssertionError

    def path(self, kind: str, name: str = "", group: str = "api/v1") -> str:
        """The path of the objects of a kind in our namespace, or of one of them."""
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def path_of(self, one: Object, *, named: bool = False) -> str:
        """The path of an object's kind in our namespace, or of the object itself."""
        group = f"apis/{one['apiVersion']}" if "/" in one["apiVersion"] else "api/v1"
        return self.path(_PLURALS[one["kind"]], one["metadata"]["name"] if named else "", group)

    def try_out(self, one: Object) -> Object:
        """Have the API server check an object without making it; returns what it has read."""
        return self.call("POST", f"{self.path_of(one)}?dryRun=All&fieldValidation=Strict", one)

    def create(self, one: Object) -> Object:
        """Make an object, unless it exists: then the request was repeated."""
        for left in reversed(range(_TRIES)):
            try:
                return self.call("POST", self.path_of(one), one)
            except ApiError as error:
                if error.reason == "AlreadyExists":
                    break
                if error.status != _CONFLICT or not left:
                    raise
                time.sleep(_PAUSE)
        if one["kind"] in ("ConfigMap", "Secret"):  # which nobody needs to read
            return one
        return self.call("GET", self.path_of(one, named=True))

    def delete(self, path: str) -> None:
        """Delete an object and all that it owns, unless it is gone."""
        try:
            self.call("DELETE", path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != _GONE:
                raise

    def watch(self, path: str, selector: str, version: str) -> Iterator[tuple[str, Object]]:
        """What happens to the selected objects after `version`: ("ADDED", object) and so on.

        Ends when the server ends it; raises as `call`, ApiError 410 for a version that is too old.
        """
        query = f"?watch=1&allowWatchBookmarks=true&labelSelector={selector}"
        query += f"&resourceVersion={version}&timeoutSeconds={_WATCHED}"
        rest = b""
        for piece in self.stream(path + query):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(None, lines):
                try:
                    event = json.loads(line)
                except ValueError as error:
                    raise self._silent(error) from error
                if event["type"] == "ERROR":
                    said = event["object"]
                    raise _refused(int(said.get("code", 500)), json.dumps(said), "")
                yield event["type"], event["object"]


def _socket_options() -> list[tuple[int, int, int]]:
    """The options by which a connection that broke is noticed within half a minute."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    options.append((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
    known = [(name, value) for name, value in _KEEPALIVE if hasattr(socket, name)]
    return options + [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in known]


def _websocket(configuration: Any, url: str, headers: Mapping[str, str]) -> Any:
    """A WebSocket by the client's configuration; the client's own function has no time limit."""
    import ssl

    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    given = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    options.update({name: value for name, value in given.items() if value})
    known = {name: value for name, value in options.items() if value is not None}
    link = WebSocket(sockopt=_socket_options(), sslopt=known)
    more: dict[str, Any] = {"header": [f"{name}: {value}" for name, value in headers.items()]}
    if configuration.proxy or configuration.proxy_headers:
        more = websocket_proxycare(more, configuration, url, headers)
    connect: Callable[..., None] = link.connect
    connect(url, timeout=PATIENCE, **more)
    link.settimeout(None)
    return link


def _body_of(answer: Any) -> bytes:
    """The body of an answer, as far as it comes."""
    import urllib3

    try:
        return bytes(answer.data)
    except (urllib3.exceptions.HTTPError, OSError):
        return b""


def _of_pod(configuration: Any) -> tuple[str, str]:
    """Take the account of the pod that we are in."""
    from kubernetes import config

    config.load_incluster_config(configuration)
    return "", (_SERVICE_ACCOUNT / "namespace").read_text().strip()


def _of_kubeconfig(configuration: Any, files: str, place: str) -> tuple[str, str]:
    """Take a context of kubeconfig files: `place` as a whole, or what is before its last "/"."""
    from kubernetes.config.kube_config import KubeConfigMerger

    from kubernetes import config

    whole = KubeConfigMerger(files).config
    value = {} if whole is None else whole.value
    contexts = {one.value["name"]: one.value["context"] for one in value.get("contexts") or ()}
    name = place if place in contexts or "/" not in place else place.rpartition("/")[0]
    chosen = name or str(value.get("current-context") or "")
    if chosen not in contexts:
        raise PrepareError(
            f"{files} has no context {chosen}" if chosen else f"{files} names no current context",
            f"it has {', '.join(contexts) or 'none'}",
            "name one of these: --on k8s:CONTEXT",
        )
    context = contexts[chosen]
    with _logged() as records:
        config.load_kube_config(files, chosen, configuration)
    users = {one.value["name"]: one.value["user"] for one in value.get("users") or ()}
    plugin = (users.get(context.get("user")) or {}).get("exec")
    if plugin and not (configuration.api_key or configuration.cert_file):
        raise PrepareError(
            f"the credential plugin {plugin.get('command')} gives no credentials",
            "; ".join(record.getMessage() for record in records),
            "log in again, as your cluster's manual says (kubectl get pods must work)",
        )
    return chosen, context.get("namespace") or "default"


@contextmanager
def _logged() -> Iterator[list[logging.LogRecord]]:
    """Collect what the library logs, which would otherwise appear on the terminal."""
    keep = BufferingHandler(1000)
    logging.getLogger().addHandler(keep)
    try:
        yield keep.buffer
    finally:
        logging.getLogger().removeHandler(keep)


def lacks_client(error: ImportError) -> PrepareError:
    """The error where the client library is not installed."""
    why = f"runs on Kubernetes need it ({error})"
    return PrepareError("the package kubernetes is not installed", why, _EXTRA)


def selector_of(labels: Mapping[str, str]) -> str:
    """A label selector as a query has it."""
    return ",".join(f"{key}%3D{value}" for key, value in labels.items())


def _refused(status: int, body: bytes | str, place: str) -> ApiError:
    """The error for an answer; its `body` should be a Status of Kubernetes."""
    try:
        said = json.loads(body)
        message, reason = str(said.get("message", "")), str(said.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = bytes(body, "utf8").decode() if isinstance(body, str) else "", ""
    namespace = place.rpartition("/")[2]
    if status == 401:
        what, fix = (
            "the cluster does not accept your credentials",
            "they have expired, or are for another cluster: log in again, as your cluster's "
            "manual says (kubectl get pods must work)",
        )
    elif status == 403:
        what = f"the cluster does not allow it in namespace {namespace}"
        fix = "`shanty k8s role` prints what runs need (add --operator if the run has it): ask for "
        fix += "it, or choose another namespace"
    elif status == 404:
        what, fix = "the cluster does not have it", "see whether it was deleted"
    elif status == 422:
        what = "the cluster does not accept an object of the run"
        fix = "correct what the message names in the options, the manifest or --k8s-patch"
    else:
        what, fix = f"the cluster refuses a request (HTTP {status})", ""
    return ApiError(what, message, fix, status, reason)
