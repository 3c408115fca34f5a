"""LightGBM over MPI: one model on all ranks, that of LightGBM's own network, and its mistakes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from runs import WORKERS, Shanty
from torch_runs import checks, passed

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

pytestmark = [pytest.mark.mpi, pytest.mark.sampled]

WORKER = WORKERS / "lgb_training.py"


def run(shanty: Shanty, flavour: str, how: str, ranks: int = 2, code: int = 0) -> Any:
    line = ("run", "--mpi", flavour, "-n", str(ranks), "--oversubscribe", WORKER, how)
    done = shanty(*line, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def told(shanty: Shanty, flavour: str, how: str, ranks: int = 2) -> list[dict[str, Any]]:
    """What each rank tells of its model, in the order of the ranks; all have the same."""
    lines = run(shanty, flavour, how, ranks).stdout.splitlines()
    found = [json.loads(line[line.index("{") :]) for line in lines if '"digest"' in line]
    assert len(found) == ranks
    assert len({each["digest"] for each in found}) == 1
    return sorted(found, key=lambda each: each["rank"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_model_is_that_of_lightgbm_s_own_network(
    shanty: Shanty, flavour: str, ranks: int
) -> None:
    ours, own = (told(shanty, flavour, how, ranks)[0] for how in ("data", "machines"))
    assert not own["lent"]  # it is LightGBM's own network that made it
    assert ours["digest"] == own["digest"]


def test_the_model_is_as_good_as_that_of_one_rank(shanty: Shanty, flavour: str) -> None:
    alone, together = (told(shanty, flavour, "data", ranks)[0]["loss"] for ranks in (1, 4))
    assert together == pytest.approx(alone, rel=0.2)


def test_voting(shanty: Shanty, flavour: str) -> None:
    assert told(shanty, flavour, "voting", 2)[0]["loss"] < 0.1


def test_all_ranks_stop_at_the_same_round(shanty: Shanty, flavour: str) -> None:
    first, second = told(shanty, flavour, "stop")
    assert (first["best"], first["score"]) == (second["best"], second["score"])
    assert first["best"] < 300
    # Rank 0 has told the run of each round, once, with the metrics of all ranks.
    lines = [json.loads(line) for line in shanty.last.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(len(lines)))
    best = min(lines, key=lambda line: line["valid_0-binary_logloss"])
    assert best["round"] + 1 == first["best"]
    assert json.loads(shanty.last.progress.read_text())["done"] > 0


def test_rows_of_a_file_are_shared_out(shanty: Shanty, flavour: str) -> None:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    np.savetxt(shanty.folder / "train.csv", np.column_stack([y, x]), delimiter=",")
    assert told(shanty, flavour, "file")[0]["loss"] < 0.1


def test_a_classifier_whose_ranks_have_other_classes(shanty: Shanty, flavour: str) -> None:
    for each in told(shanty, flavour, "classifier"):
        assert each["classes"] == ["benign", "malignant"]
        assert each["score"] > 0.98


def test_what_ranks_must_have_alike_and_metrics_of_all_rows(shanty: Shanty, flavour: str) -> None:
    script = "lgb_alike.py"
    words = ("run", "-q", "--mpi", flavour, "-n", "3", "--oversubscribe", WORKERS / script)
    done = shanty(*words, timeout=170)
    for name in checks(script):
        passed(done, name)
    assert done.returncode == 0, done.stderr


def test_the_model_is_saved_once(shanty: Shanty, flavour: str) -> None:
    told(shanty, flavour, "save")
    assert [path.name for path in shanty.folder.iterdir()] == ["model.txt"]


def test_a_model_that_cannot_be_written(shanty: Shanty, flavour: str) -> None:
    for each in told(shanty, flavour, "unwritable"):
        assert each["error"].startswith("the model cannot be written to none/model.txt: ")
    assert [path.name for path in shanty.folder.iterdir()] == ["model.txt"]


def test_what_a_rank_may_have_of_its_own(shanty: Shanty, flavour: str) -> None:
    assert [each["trees"] for each in told(shanty, flavour, "of a rank")] == [5, 5]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("parameters", "num_leaves is 15 on rank 0 and 16 on rank 1"),
        ("empty", "rank 0 has no rows"),
        ("columns", "30 on rank 0 and 29 on rank 1"),
        ("feature", "tree_learner is 'feature'"),
    ],
)
def test_mistakes(shanty: Shanty, flavour: str, how: str, words: str) -> None:
    assert words in run(shanty, flavour, how, code=1).stderr


def test_a_rank_that_fails_in_the_middle(shanty: Shanty, flavour: str) -> None:
    done = run(shanty, flavour, "dies", code=1)
    assert "rank 1" in done.stderr
    assert "a fault of this rank" in done.stderr  # after no two hours, as with sockets
