"""The API of one cluster, in one of its namespaces, by the official client's configuration.

`kubernetes` (the package) reads kubeconfig files, runs credential plugins and refreshes tokens; it
is imported when a cluster is needed, and by nothing else. Objects are plain JSON as in the manual.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shanty.runtime.errors import PrepareError

Object = dict[str, Any]

PATIENCE = 30.0  # seconds for an answer
_CONNECTING = 8.0  # seconds for a connection
_RETRIES = 6  # of a request that the server could not take at the moment
_BACKOFF = 0.2  # seconds before the first of them, then twice as many each time
_TEMPORARY = (429, 500, 502, 503, 504)
_WATCHED = 240  # seconds after which a watch is to be begun anew, so that dead ones are noticed
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXTRA = "pip install 'shanty[kubernetes]'"


class ApiError(PrepareError):
    """The cluster has refused a request; `status` is HTTP's, `reason` and `message` its own."""

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
        """`place` is "CONTEXT/NAMESPACE", either empty for the current one.

        PrepareError where there is no such context, or the client library is missing.
        """
        self.requests = 0  # that were made, those for WebSockets too
        self._environ = environ
        self._lock = threading.Lock()
        context, _, namespace = place.rpartition("/") if "/" in place else (place, "", "")
        self.context = context
        self._configuration: Any = None
        found = self._load()
        self.context = found[0]
        self.namespace = namespace or found[1]

    @property
    def place(self) -> str:
        """ "CONTEXT/NAMESPACE"."""
        return f"{self.context}/{self.namespace}"

    @property
    def server(self) -> str:
        """The address of the API server."""
        return str(self._configuration.host)

    # ------------------------------------------------------------------- who we are there

    def _load(self) -> tuple[str, str]:
        """Read the kubeconfig, or a pod's own account; returns the context and its namespace."""
        try:
            import yaml

            from kubernetes import client, config
        except ImportError as error:
            raise lacks_client(error) from error
        configuration = client.Configuration()
        files = self._environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        here = any(Path(path).expanduser().is_file() for path in files.split(":"))
        if not here and (_SERVICE_ACCOUNT / "token").exists() and not self.context:
            config.load_incluster_config(configuration)
            self._take(configuration)
            return "", (_SERVICE_ACCOUNT / "namespace").read_text().strip()
        if not here:
            raise PrepareError(
                "there is no cluster to go to", f"{files} is not there",
                "get a kubeconfig from whoever runs the cluster, and name it in KUBECONFIG",
            )  # fmt: skip
        try:
            contexts, active = config.list_kube_config_contexts(files)
            names = [one["name"] for one in contexts]
            if self.context and self.context not in names:
                raise PrepareError(
                    f"{files} has no context {self.context}",
                    f"it has {', '.join(names)}",
                    "name one of these: --on k8s:CONTEXT, or --on k8s for the current one",
                )
            chosen = next(one for one in contexts if one["name"] == self.context or (
                not self.context and one is active))  # fmt: skip
            config.load_kube_config(files, chosen["name"], configuration, persist_config=False)
        except (
            config.ConfigException, yaml.YAMLError, KeyError, TypeError, ValueError, OSError,
        ) as error:  # fmt: skip
            raise PrepareError(
                f"{files} cannot be used", str(error), "see what `kubectl cluster-info` says"
            ) from error
        self._take(configuration)
        return chosen["name"], chosen["context"].get("namespace") or "default"

    def _take(self, configuration: Any) -> None:
        from kubernetes.client import ApiClient

        self._configuration = configuration
        self._pool = ApiClient(configuration).rest_client.pool_manager

    def _headers(self) -> dict[str, str]:
        with self._lock:  # a credential plugin is asked once
            bearer = self._configuration.auth_settings().get("BearerToken")
            if bearer is not None:
                return {"authorization": bearer["value"]}
            if self._configuration.username:
                return {"authorization": self._configuration.get_basic_auth_token()}
        return {}  # a client's certificate

    def websocket(self, path: str, query: list[tuple[str, str]]) -> Any:
        """A WebSocket to a subresource as `exec`; raises as `call`."""
        from urllib.parse import urlencode

        from kubernetes.stream import ws_client
        from websocket import WebSocketBadStatusException, WebSocketException

        url = f"{self.server}{path}?{urlencode(query)}".replace("http", "ws", 1)
        for last in (False, True):
            self.requests += 1
            headers = {"sec-websocket-protocol": "v4.channel.k8s.io", **self._headers()}
            try:
                return ws_client.create_websocket(self._configuration, url, headers)
            except WebSocketBadStatusException as error:
                if error.status_code == 401 and not last and self._renew():
                    continue
                body = error.resp_body or b""
                raise _refused(error.status_code, body, self.place) from error
            except (WebSocketException, OSError) as error:
                raise self._silent(error) from error
        raise AssertionError

    def _renew(self) -> bool:
        """Read the credentials anew, which somebody may have renewed; False where it failed."""
        with self._lock:
            try:
                self._load()
            except PrepareError:
                return False
        return True

    def _silent(self, error: Exception) -> UnreachableError:
        reason = getattr(error, "reason", None) or error
        return UnreachableError(
            f"the cluster {self.context or 'that this pod is in'} does not answer",
            f"{self.server}: {reason}",
            "see to the network, a VPN, or whether the cluster is up: kubectl cluster-info",
        )

    # ------------------------------------------------------------------------------ asking

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        kind: str = "application/json",
        patience: float = PATIENCE,
        retries: int = _RETRIES,
    ) -> Object:
        """Make a request and return what came; waits and asks again where the server is busy.

        ApiError where it is refused, UnreachableError where nobody answers.
        """
        return dict(json.loads(self._ask(method, path, body, kind, patience, retries).data or "{}"))

    def stream(self, path: str) -> Iterator[bytes]:
        """What a GET returns, piece by piece as it comes: logs, a watch. Raises as `call`."""
        import urllib3

        answer = self._ask("GET", path, None, "", _WATCHED + PATIENCE, 0, whole=False)
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
        patience: float,
        retries: int,
        *,
        whole: bool = True,
    ) -> Any:
        import urllib3

        policy = urllib3.Retry(
            retries, connect=min(2, retries), read=min(2, retries), backoff_factor=_BACKOFF,
            status_forcelist=_TEMPORARY, allowed_methods=None, raise_on_status=False,
        )  # fmt: skip
        for last in (False, True):
            self.requests += 1
            headers = {"accept": "application/json, */*", **self._headers()}
            if body is not None:
                headers["content-type"] = kind
            try:
                answer = self._pool.request(
                    method, self.server + path, headers=headers, retries=policy,
                    body=None if body is None else json.dumps(body).encode(),
                    timeout=urllib3.Timeout(connect=_CONNECTING, read=patience),
                    preload_content=whole,
                )  # fmt: skip
            except urllib3.exceptions.HTTPError as error:
                raise self._silent(error) from error
            if answer.status == 401 and not last and self._renew():
                continue
            if answer.status >= 400:
                raise _refused(answer.status, answer.data, self.place)
            return answer
        raise AssertionError

    def path(self, kind: str, name: str = "", group: str = "api/v1") -> str:
        """The path of the objects of a kind in our namespace, or of one of them."""
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

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


def lacks_client(error: ImportError) -> PrepareError:
    """The error where the client library is not installed."""
    why = f"runs on Kubernetes need it ({error})"
    return PrepareError("the package kubernetes is not installed", why, _EXTRA)


def selector_of(labels: Mapping[str, str]) -> str:
    """A label selector as a query has it."""
    return ",".join(f"{key}%3D{value}" for key, value in labels.items())


def _refused(status: int, body: bytes | str, place: str) -> ApiError:
    """The error for an answer of HTTP's; `body` is a Status of Kubernetes, where it is one."""
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
        fix = "what runs need is printed by `shanty k8s role`: ask for it, or choose a namespace"
    elif status == 404:
        what, fix = "the cluster does not have it", "see whether it was deleted"
    else:
        what, fix = f"the cluster refuses a request (HTTP {status})", ""
    return ApiError(what, message, fix, status, reason)
