"""The smallest Role that a user needs for runs in a namespace, and whether he has it."""

from __future__ import annotations

from typing import Any

from shanty.launch.kubernetes.cluster import Cluster

NAME = "shanty"
# Group, resource, verbs. What the Job owns goes with it, so nothing else is ever deleted.
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "get", "list", "delete")),
    ("", "configmaps", ("create",)),
    ("", "secrets", ("create",)),
    ("", "pods", ("list", "watch")),
    ("", "pods/exec", ("create", "get")),  # over a WebSocket it is a GET
    ("", "events", ("list",)),
)
# What `--operator` needs: the operator makes the pods, and what they print is their log.
BY_OPERATOR: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("kubeflow.org", "mpijobs", ("create", "get", "delete")),
    ("trainer.kubeflow.org", "trainjobs", ("create", "get", "delete")),
    ("trainer.kubeflow.org", "trainingruntimes", ("create", "get", "delete")),
    ("", "configmaps", ("create",)),
    ("", "pods", ("list", "watch")),
    ("", "pods/log", ("get",)),
)
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def manifests(
    namespace: str, user: str = "", account: str = "", *, operator: bool = False
) -> list[dict[str, Any]]:
    """The Role and, for a user or a service account, the RoleBinding that gives it to him.

    `operator`: with what `--operator` needs.
    """
    group = "rbac.authorization.k8s.io"
    metadata = {"name": NAME, "namespace": namespace}
    rules = [
        {"apiGroups": [api], "resources": [resource], "verbs": list(verbs)}
        for api, resource, verbs in dict.fromkeys((*RULES, *(BY_OPERATOR if operator else ())))
    ]
    found: list[dict[str, Any]] = [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    ]
    subjects: list[dict[str, Any]] = []
    if user:
        subjects.append({"apiGroup": group, "kind": "User", "name": user})
    if account:
        subjects.append({"kind": "ServiceAccount", "name": account, "namespace": namespace})
    if subjects:
        found.append(
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": NAME},
                "subjects": subjects,
            }
        )
    return found


def lacking(cluster: Cluster) -> list[str]:
    """What of the Role the user does not have, as "create jobs"."""
    missing = []
    for group, resource, verbs in RULES:
        name, _, sub = resource.partition("/")
        for verb in verbs:
            wanted = {
                "group": group, "resource": name, "subresource": sub, "verb": verb,
                "namespace": cluster.namespace,
            }  # fmt: skip
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": wanted},
            }
            if not cluster.call("POST", _REVIEWS, review)["status"].get("allowed"):
                missing.append(f"{verb} {resource}")
    return missing
