"""Reads job.json also as older versions of shanty wrote it."""

from __future__ import annotations

from typing import Any, Dict, Mapping

# Older versions wrote each option of Slurm and Kubernetes as a field of the job, with its default
# where it was not asked for: a job of any target had all of them.
_FIELDS = (
    *("partition", "account", "qos", "constraint", "reservation", "exclusive", "requeue", "slurm"),
    *("uid", "node_selector", "tolerations", "service_account", "priority_class", "pull_secrets"),
    *("labels", "queue", "k8s_patch", "operator", "schedule_timeout", "keep"),
)
_DEFAULTS = {"exclusive": False, "requeue": False, "keep": False, "schedule_timeout": 300.0}
_NOW = {"environment": "packages"}  # fields that have another name now


def fields_of(values: Mapping[str, Any]) -> Dict[str, Any]:
    """The fields of a job by the names that they have now."""
    return {_NOW.get(name, name): value for name, value in values.items()}


def options_of(values: Mapping[str, Any]) -> Dict[str, Any]:
    """The options of the job's target; what is a list in JSON is a tuple again."""
    old = {
        name: values[name]
        for name in _FIELDS
        if values.get(name) not in (None, [], ()) and values[name] != _DEFAULTS.get(name)
    }
    found = {**old, **values.get("options", {})}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
