"""What Kubernetes declares: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shanty.launch.options.declared import NODES, Declared
from shanty.launch.options.option import Option, choice, number, switch, text, texts, time
from shanty.launch.user_path import user_path

OPERATORS = ("mpijob", "trainjob")


def _patch(path: Any, _where: str, folder: Path) -> str:
    from shanty.launch.kubernetes.objects import read_patch

    return read_patch(folder / user_path(str(path)))


KUBERNETES = Declared(
    "k8s",
    "Kubernetes",
    (
        NODES,
        number("uid", "--uid", "The user that the pods' processes have.", 0, toml=(int,)),
        texts("node_selector", "--node-selector", "A label that nodes must have.", "KEY=VALUE"),
        texts("tolerations", "--toleration", "A taint that pods tolerate.", "KEY[=VALUE][:EFFECT]"),
        text("service_account", "--service-account", "The pods' service account.", "NAME"),
        text("priority_class", "--priority-class", "The pods' priority class.", "NAME"),
        texts("pull_secrets", "--pull-secret", "A Secret to pull the image with.", "NAME"),
        texts("labels", "--label", "A label for the Job and its pods.", "KEY=VALUE")._replace(
            old="--k8s-label"
        ),
        text("queue", "--queue", "A queue of Kueue's.", "NAME"),
        Option(
            "k8s_patch",
            "--k8s-patch",
            "A file that changes the Job: YAML, merged.",
            (str,),
            _patch,
            is_file=True,
            metavar="FILE",
            completes="files",
        ),
        choice(
            "operator",
            "--operator",
            "By Kubeflow's operator: mpijob or trainjob.",
            "KIND",
            OPERATORS,
        )._replace(old="--as"),
        time("schedule_timeout", "--schedule-timeout", "In which all pods have to run [5m]."),
        switch("keep", "--keep", "Leave the pods there after the end."),
    ),
    late=True,
    needs_image=True,
    of_machines=("node_selector", "tolerations", "priority_class", "queue", "memory_per_rank"),
)
