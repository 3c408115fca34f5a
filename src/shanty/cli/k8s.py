"""`shanty k8s`: what a cluster's administrator is asked for."""

from __future__ import annotations

import json
import os

import click

from shanty.client.terminal.options import json_option
from shanty.runtime.errors import UsageError


@click.group()
def k8s() -> None:
    """Say what runs on Kubernetes need of a cluster."""


@k8s.command()
@click.option("--namespace", default="", help="For this namespace [the current one].")
@click.option("--context", "place", default="", help="Of this context [the current one].")
@click.option("--user", default="", help="Bind it to this user.")
@click.option("--service-account", "account", default="", help="Bind it to this account.")
@click.option("--operator", is_flag=True, help="Include what runs with --operator need.")
@json_option
def role(
    namespace: str, place: str, user: str, account: str, operator: bool, as_json: bool
) -> None:
    """Print the smallest Role that runs need, for `kubectl apply`.

    \b
    Examples:
      shanty k8s role --namespace team --user ada > role.yaml
    """
    from shanty.launch.kubernetes.cluster import Cluster, lacks_client
    from shanty.launch.kubernetes.role import manifests

    if user and account:
        raise UsageError("--user and --service-account are both given", fix="give one of them")
    if not namespace:
        namespace = Cluster(f"{place}/" if place else "", os.environ).namespace
    found = manifests(namespace, user, account, operator=operator)
    if as_json:
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
        return
    try:
        import yaml
    except ImportError as error:
        raise lacks_client(error) from error
    print(yaml.safe_dump_all(found, sort_keys=False), end="")
