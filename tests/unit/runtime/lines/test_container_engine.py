"""Lines that start a container in each rank: which are met, and what stands for them."""

from __future__ import annotations

import os
import shlex

import pytest

from shanty.runtime.lines.command import STARTERS
from shanty.runtime.lines.container_engine import (
    can_be_ended,
    find,
    instead,
    is_apart,
    labelled,
    refusal,
)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("docker run --rm img:1 python x.py", "--image img:1 -n 2 python x.py"),
        ("docker run -it --rm -v /data:/data:ro -w /data -e A=b img python x.py --rm -v",
         "--image img --mount /data:/data:ro -e A=b -n 2 python x.py --rm -v"),
        ("docker run -v/a:/b --name=x -p 80:80 --gpus all img x",
         "--image img --mount /a:/b --gpus all -n 2 x"),
        ("docker run --mount type=bind,src=/a,dst=/b,readonly -itv /c:/d img x",
         "--image img --mount /a:/b:ro --mount /c:/d -n 2 x"),
        ("docker run -v named:/b -v /tmp:/tmp --network host img x", "--image img -n 2 x"),
        ("docker run --entrypoint python img x.py", "--image img -n 2 python x.py"),
        ("docker run img", "--image img -n 2 PROGRAM"),
        ("docker -H unix:///d.sock --context run container run img x", "--image img -n 2 x"),
        ("/usr/bin/docker run img x", "--image img -n 2 x"),
        ("sudo -E docker run img x", "--image img -n 2 x"),
        ("env A=b nice -n 5 timeout 9 docker run img x", "--image img -n 2 x"),
        ("docker exec -it web python x.py", "--image IMAGE -n 2 python x.py"),
        ("docker compose -f c.yml run web python x.py", "--image IMAGE -n 2 python x.py"),
        ("docker-compose run web x", "--image IMAGE -n 2 x"),
        ("podman --log-level debug run --userns keep-id -e A img x",
         "--image img --runtime podman -e A -n 2 x"),
        ("nerdctl -n k8s.io run img x", "--image img -n 2 x"),
        ("apptainer exec --cleanenv -B /data ./root x",
         "--image ./root --runtime apptainer --mount /data:/data -n 2 x"),
        ("singularity -d exec -ce docker://img x",
         "--image img --runtime apptainer -n 2 x"),
        ("apptainer exec -ceB/data ./root x",
         "--image ./root --runtime apptainer --mount /data:/data -n 2 x"),
        ("singularity run -C a.sif x", "--image a.sif --runtime apptainer -n 2 x"),
        ("enroot start img x", "--image IMAGE -n 2 x"),
        ("kubectl -n team exec pod -c main -- python x.py", "--on k8s -n 2 python x.py"),
        ("kubectl run p --image img -- python x.py", "--on k8s -n 2 python x.py"),
        ("ssh -p 22 me@node1 python x.py", "--on node1 -n 2 python x.py"),
        ("bash -c '/usr/bin/docker run img x'", "--image img -n 2 x"),
        ("bash -lc 'cd /a && sudo docker run img x'", "--image img -n 2 x"),
    ],
)  # fmt: skip
def test_a_line_is_refused_with_the_one_to_use(line: str, fix: str) -> None:
    argv = shlex.split(line)
    assert os.path.basename(argv[0]) in STARTERS
    found = find(argv)
    assert found is not None
    assert is_apart(found, {})
    assert f"shanty run {fix}" in instead(found, "2").split(": ", 1)[1]
    why, advice = refusal(found, {"WORLD_SIZE": "2"}) or ("", "")
    assert why.startswith(f"cannot run `{found.title}` in each of 2 ranks")
    assert advice.endswith("--alone ok")
    assert refusal(found, {"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    "line",
    [
        "docker ps", "docker", "docker build -t run .", "docker images", "docker run --help",
        "docker --version", "podman pull run", "kubectl get pods", "kubectl apply -f run",
        "ssh", "ssh node1", "apptainer build a.sif docker://img", "sudo ls", "python x.py",
        "bash x.sh", "bash -c 'docker run img x'", "bash -c 'echo \"'", "bash -c",
        "bash -c 'echo sudo; cat docker'", "env A=b python docker run",
    ],
)  # fmt: skip
def test_other_lines_are_left_alone(line: str) -> None:
    try:
        argv = shlex.split(line)
    except ValueError:
        argv = ["bash", "-c", "echo '"]
    assert find(argv) is None


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("podman run --env-host img x", {}),
        ("docker run --env-file f img x", {}),
        ("docker run -e RANK -e WORLD_SIZE img x", {}),
        ("docker run -ePMIX_RANK img x", {}),
        ("podman run --env=PMI* img x", {}),
        ("apptainer exec -B /data root x -e", {}),
        ("apptainer exec -ec --env PMIX_RANK=0 root x", {}),
        ("apptainer exec --cleanenv root x", {"APPTAINERENV_PMI_RANK": "0"}),
    ],
)
def test_a_container_that_is_told_its_rank_is_started(line: str, environ: dict[str, str]) -> None:
    found = find(shlex.split(line))
    assert found is not None
    assert not is_apart(found, environ)
    assert refusal(found, {"WORLD_SIZE": "2", **environ}) is None


def test_apptainer_may_be_told_by_a_variable() -> None:
    found = find(["apptainer", "exec", "root", "x"])
    assert found is not None
    assert is_apart(found, {"APPTAINER_CLEANENV": "1"})
    assert not is_apart(found, {"APPTAINER_CLEANENV": "0", "SINGULARITY_CLEANENV": "1"})


def test_a_label_tells_whose_container_it_is() -> None:
    environ = {"SHANTY_RUN_DIR": "/runs/a"}
    for line, expected in (
        ("docker run --rm img x",
         "docker run --label shanty.rank=/runs/a --label shanty.rank.rm --rm img x"),
        ("sudo docker container run img run",
         "sudo docker container run --label shanty.rank=/runs/a img run"),
        ("docker exec web x", "docker exec web x"),
        ("apptainer exec root x", "apptainer exec root x"),
    ):  # fmt: skip
        found = find(shlex.split(line))
        assert found is not None
        assert shlex.join(labelled(found, environ)) == expected
    found = find(["bash", "-c", "/usr/bin/docker run img x"])
    assert found is not None
    assert not can_be_ended(found)
