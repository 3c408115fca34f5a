"""A real cluster for tests: whoever runs them names it; `CONTRIBUTING.md` says how to get one.

SHANTY_TEST_KUBECONFIG         of a user who may do in one namespace what `shanty k8s role` says
SHANTY_TEST_KUBECONFIG_ADMIN   of one who may do all
SHANTY_TEST_KUBE_IMAGE         an image that the nodes have, with Python
SHANTY_TEST_KUBE_DO            a program that does to the cluster what no API does (see `Kube`)
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runs import Shanty, mpi_folder, wait_for
from shanty.launch.kubernetes import objects
from shanty.launch.kubernetes.cluster import ApiError, Cluster
from shanty.launch.targets import kubernetes_watcher
from shanty.runtime.rundir import RunDir, read_json

UID = 12345
HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print("sum", world.allreduce(1), "rank", world.rank, "uid", os.getuid(), os.uname().nodename)
"""
UP = """
import time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("rank", MPI.COMM_WORLD.rank, "is up", flush=True)
while True:
    time.sleep(0.2)
"""
GONE = 90.0  # seconds for a cluster to remove pods


@dataclass
class Kube:
    """The cluster, and the program in a home and a workspace of its own."""

    user: Path
    admin: Path
    image: str
    shanty: Shanty

    @property
    def words(self) -> list[str]:
        return ["--on", "k8s", "--image", self.image, "--uid", str(UID), "--packages", "none"]

    def __call__(self, *words: str | Path, timeout: float = 150, **options: Any) -> Any:
        """`shanty run … WORDS` to its end."""
        return self.shanty("run", *self.words, *words, timeout=timeout, env=self.env, **options)

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        return self.shanty.start("run", *self.words, *words, env=self.env, **options)

    def do(self, *words: str, code: int = 0, **env: str) -> str:
        """`shanty WORDS`; its output."""
        done = self.shanty(*words, env={**self.env, **env})
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    @property
    def env(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.user)}

    def submit(self, *words: str | Path) -> RunDir:
        done = self("-d", "-q", *words)
        assert done.returncode == 0, done.stderr
        return RunDir(self.shanty.home / "runs" / done.stdout.strip())

    def described(self, run: RunDir) -> dict[str, Any]:
        lines = self.do("ps", "--all", "--json").splitlines()
        return next(one for one in map(json.loads, lines) if one["id"] == run.id)

    def await_state(self, run: RunDir, *states: str, seconds: float = 120) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.described(run))
            return found["state"] in states or found["ended"] is not None

        wait_for(there, seconds, f"neither {states} nor ended")
        assert found["state"] in states, found
        return found

    @property
    def last(self) -> RunDir:
        return RunDir(max((self.shanty.home / "runs").iterdir()))

    @property
    def runs(self) -> list[RunDir]:
        folder = self.shanty.home / "runs"
        return [RunDir(path) for path in folder.iterdir()] if folder.is_dir() else []

    # ------------------------------------------------------------------- the cluster itself

    def cluster(self, who: Path | None = None) -> Cluster:
        return Cluster("", {"KUBECONFIG": str(who or self.user)})

    @property
    def by_admin(self) -> Cluster:
        """The cluster for who may do all, in the user's namespace."""
        found = self.cluster(self.admin)
        found.namespace = self.cluster().namespace
        return found

    def pod_of(self, run: RunDir, number: int = 1) -> str:
        """The name of a pod of a run, by its place in the plan."""
        return str((read_json(run.plan) or {})["attempt"]["nodes"][number]["name"])

    def take_away(self, pod: str, how: str = "deleted") -> None:
        """Delete or evict a pod."""
        path = self.by_admin.path("pods", pod)
        if how == "deleted":
            self.by_admin.call("DELETE", path)
        else:
            body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod}}
            self.by_admin.call("POST", f"{path}/eviction", body)

    def pods(self, run: RunDir) -> dict[str, Any]:
        its = self.cluster()
        found = its.call("GET", f"{its.path('pods')}?labelSelector={objects.LABEL}%3D{run.id}")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    def left(self, run: RunDir) -> list[str]:
        """The objects of a run that there are."""
        its, found = self.cluster(), [*self.pods(run)]
        for kind, group in (("configmaps", "api/v1"), ("secrets", "api/v1"),
                            ("jobs", objects.BATCH)):  # fmt: skip
            try:
                its.call("GET", its.path(kind, objects.name_of(run.id), group))
            except ApiError as error:
                assert error.status == 404, error
            else:
                found.append(kind)
        return found

    def changer(self) -> str:
        """The program that does to the cluster what no API does; the test is skipped without it."""
        program = os.environ.get("SHANTY_TEST_KUBE_DO")
        if not program:
            pytest.skip("SHANTY_TEST_KUBE_DO names no program that does it")
        return program

    def change(self, *words: str) -> str:
        """Have something done to the cluster that its API does not do."""
        program = self.changer()
        return subprocess.run(
            [program, *words], capture_output=True, text=True, check=True, timeout=120
        ).stdout


def end(kube: Kube, run: RunDir) -> None:
    """Stop a run, and see that nothing is left of it."""
    kube.shanty("stop", run.id, env=kube.env)
    wait_for(lambda: not kube.left(run), GONE, "objects of the run are left")
    wait_for(lambda: not kubernetes_watcher.is_watched(run), 15, "the watcher is still there")


def placed(text: str, ranks: int) -> Sequence[str]:
    """The pods that the ranks of hello.py were in, each in one world of all."""
    lines = [line.split() for line in text.splitlines() if " rank " in line and "uid" in line]
    assert sorted(int(one[one.index("rank") + 1]) for one in lines) == list(range(ranks)), text
    assert all(one[one.index("sum") + 1] == str(ranks) for one in lines)
    return sorted({one[-1] for one in lines})


def kube_in(folder: Path) -> Kube:
    """The cluster that the variables name, and a home and a workspace in `folder`."""
    names = ("SHANTY_TEST_KUBECONFIG", "SHANTY_TEST_KUBECONFIG_ADMIN", "SHANTY_TEST_KUBE_IMAGE")
    given = [os.environ.get(name, "") for name in names]
    if not all(given):
        pytest.skip(f"{names[given.index('')]} names no cluster")
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    (home / "mpi").symlink_to(mpi_folder())
    (work / "hello.py").write_text(HELLO)
    (work / "up.py").write_text(UP)
    return Kube(Path(given[0]), Path(given[1]), given[2], Shanty(home, work))
