"""Lines for dmlc-submit on real ranks: the verb, the program in a run, a configuration file."""

from __future__ import annotations

import json
import operator
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from launches import LONG
from runs import WORKERS, Shanty

pytestmark = pytest.mark.mpi
LINE = WORKERS / "dmlc_line.py"
PLAIN = "DMLC_JOB_CLUSTER={cluster} DMLC_NUM_ATTEMPT=0 DMLC_NUM_SERVER=0 DMLC_NUM_WORKER={ranks} "


def check(
    done: subprocess.CompletedProcess[str],
    ranks: int,
    *words: str,
    cluster: str = "mpi",
    more: str = "",
) -> None:
    """The ranks are in one world, with these words and variables."""
    assert done.returncode == 0, done.stderr
    total = str(ranks * (ranks + 1) // 2)
    said = [" ".join((f"[{rank}] world", total, *words)) for rank in range(ranks)]
    assert sorted(done.stdout.splitlines()) == said, done.stdout
    plain = PLAIN.format(cluster=cluster, ranks=ranks) + "DMLC_ROLE=worker"
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("[")) == [
        f"[{rank}] {plain} DMLC_TASK_ID={rank}{more}" for rank in range(ranks)
    ]


def test_the_tutorials_line(shanty: Shanty, flavour: str) -> None:
    """As it stands, with the path of a tracker that is not there, in a run and as a verb."""
    words = ["--num_round", "50", "--data_dir", "DIR"]
    line = ["--cluster", "mpi", "--num-workers", "3", "python", str(LINE), *words]
    path = "/dmlc-core/tracker/dmlc-submit"
    check(shanty("run", "--mpi", flavour, "--", path, *line), 3, *words)
    (shanty.folder / "shanty.toml").write_text(f'[run]\nmpi = "{flavour}"\n')
    check(shanty("dmlc-submit", *line), 3, *words)


def test_a_line_with_many_options(shanty: Shanty, flavour: str) -> None:
    (shanty.folder / "hosts").write_text("localhost slots=2\n")
    options = (
        "--cluster mpi -H hosts --num-workers 2 --num-servers 1 --worker-memory 16m "
        "--worker-cores 1 --env WORD_A=a,b --env-worker WORD_B:c --files hosts "
        "--log-file log.txt --queue q"
    )
    done = shanty("run", "--mpi", flavour, "--", "dmlc-submit", *options.split(), "python", LINE)
    check(done, 2, more=" DMLC_WORKER_CORES=1 DMLC_WORKER_MEMORY_MB=16 WORD_A=a,b WORD_B=c")
    assert done.stderr.count("left out of this dmlc-submit line") == 1
    assert "--num-servers 1 (the ranks talk to each other" in done.stderr
    log = (shanty.folder / "log.txt").read_text().splitlines()
    assert [line[:12] for line in sorted(log) if "world" in line] == ["[0] world 3", "[1] world 3"]
    assert len(log) == 4


def test_it_is_called_deep_inside_a_script(shanty: Shanty, flavour: str) -> None:
    text = f"dmlc-submit --num-workers 2 --cluster local python {LINE} a\ndmlc-submit --help\n"
    (shanty.folder / "x.sh").write_text(text)
    done = shanty("run", "--mpi", flavour, "--raw", "bash", "x.sh")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("world 3 a\n") == 2
    assert "--num-workers, -n, --nworker" in done.stdout
    done = shanty("run", "-q", "--", "dmlc-submit", "--num-workers", "0", "true")
    assert done.returncode == 2
    assert "--num-workers must be at least 1, not 0" in done.stderr


def test_the_output_goes_to_a_log_file_as_well(shanty: Shanty) -> None:
    (shanty.folder / "log.txt").write_text("before\n")
    line = ["--num-workers", "2", "--log-file", "log.txt", "--jobname", "my job", "python", LINE]
    done = shanty("dmlc-submit", "--json", *line)
    assert done.returncode == 0, done.stderr
    assert '"event": "ended"' in done.stdout
    first, *log = (shanty.folder / "log.txt").read_text().splitlines()
    assert first == "before"
    assert sorted(line[:11] for line in log if "world" in line) == ["[0] world 3", "[1] world 3"]
    assert len(log) == 4
    assert shanty("logs", "my-job").stdout.count("world 3") == 2


def test_a_script_a_file_and_a_text(shanty: Shanty) -> None:
    """What a shell in the workspace would make of the command."""
    (shanty.folder / "x.py").write_text("import os; print('py', os.environ['DMLC_TASK_ID'])\n")
    (shanty.folder / "x.sh").write_text("#!/bin/sh\necho sh $DMLC_TASK_ID $1\n")
    (shanty.folder / "x.sh").chmod(0o755)
    for words, said in {
        ("x.py",): "[{0}] py {0}",
        ("x.sh", "a"): "[{0}] sh {0} a",
        ("echo $DMLC_TASK_ID | cat",): "[{0}] {0}",
    }.items():
        done = shanty("dmlc-submit", "-q", "-n", "2", *words)
        assert sorted(done.stdout.splitlines()) == [said.format(0), said.format(1)], done.stderr


# ------------------------------------------------------------------------- a configuration file

CONFIGURATION = """\
booster = gbtree
objective = binary:logistic
eta = 1.0
gamma = 1.0            # as in XGBoost's own demonstration
max_depth = 3
silent = 1
num_round = 4
save_period = 2
model_dir = models
data = "train.txt?format=libsvm"
eval[test] = test.txt
eval_train = 1
test:data = "test.txt?format=libsvm"
"""


def write_rows(path: Path, first: int, rows: int) -> None:
    """Rows of two classes that two features tell apart, with labels and some missing values."""
    lines = []
    for row in range(first, first + rows):
        a, b = row * 37 % 101, row * 53 % 89
        label = int(a > 50) ^ int(b > 70)
        lines.append(f"{label} 0:{a} 3:{b}" + (f" 7:{row % 5}" if row % 3 else ""))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def configured(shanty: Shanty) -> Shanty:
    if find_spec("xgboost") is None:  # not imported: that takes seconds
        pytest.skip("xgboost is not installed")
    write_rows(shanty.folder / "train.txt", 0, 3000)
    write_rows(shanty.folder / "test.txt", 3000, 700)
    (shanty.folder / "mushroom.conf").write_text(CONFIGURATION)
    (shanty.folder / "models").mkdir()
    return shanty


def test_a_configuration_file(configured: Shanty, flavour: str) -> None:
    shanty, folder = configured, configured.folder
    (folder / "shanty.toml").write_text(f'[run]\nmpi = "{flavour}"\n')
    line = ["--cluster", "mpi", "--num-workers", "3", "../../xgboost", "mushroom.conf"]
    done = shanty("dmlc-submit", *line, "nthread=1", "num_round=5", "model_out=last.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("silent=1 is now verbosity=0") == 1
    rounds = [line.split() for line in done.stderr.splitlines() if "-logloss:" in line]
    assert [line[:2] for line in rounds] == [["[0]", f"[{number}]"] for number in range(5)]
    assert all(line[2].startswith("test-") and line[3].startswith("train-") for line in rounds)
    assert float(rounds[-1][2].partition(":")[2]) < 0.1
    saved = sorted(path.name for path in (folder / "models").iterdir())
    assert saved == ["0002.model", "0004.model"]
    assert [path.name for path in shanty.last.artifacts.iterdir()] == ["last.json"]
    learner = json.loads((folder / "last.json").read_text())["learner"]
    assert learner["learner_model_param"]["num_feature"] == "8"
    assert len(learner["gradient_booster"]["model"]["trees"]) == 5


@LONG
def test_what_can_be_done_with_a_model(configured: Shanty) -> None:
    """Predict, over two ranks; go on training; dump."""
    shanty, folder = configured, configured.folder
    program = ["-q", "xgboost", "mushroom.conf", "eval_train=0"]
    done = shanty("run", "-n", "1", *program)
    assert done.returncode == 0, done.stderr

    done = shanty("run", "-n", "2", *program, "task=pred", "model_in=models/0004.model")
    assert done.returncode == 0, done.stderr
    found = [float(value) > 0.5 for value in (folder / "pred.txt").read_text().splitlines()]
    labels = [line.startswith("1") for line in (folder / "test.txt").read_text().splitlines()]
    assert len(found) == len(labels)
    assert sum(map(operator.ne, found, labels)) < 0.05 * len(labels)

    words = ["num_round=1", "model_in=models/0004.model", "model_out=more.json", "save_period=0"]
    done = shanty("run", "-n", "1", *program, *words)
    assert done.returncode == 0, done.stderr
    words = ["task=dump", "model_in=more.json", "dump_stats=1", "name_dump=d.txt"]
    done = shanty("run", "-n", "1", *program, *words)
    assert done.returncode == 0, done.stderr
    text = (folder / "d.txt").read_text()
    assert text.count("booster[") == 5
    assert "cover=" in text
