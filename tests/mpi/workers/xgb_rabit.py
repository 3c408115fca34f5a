"""What scripts of the years of rabit do, on three ranks.

The argument is a folder that all ranks have, for files that they split. See run_checks.py.
"""

import io
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import xgboost as xgb
from checks import raised
from mpi4py import MPI
from scipy.sparse import csr_matrix
from xgboost import Booster, DMatrix, cv, train  # before rabit.init; to work as well later on

WORLD = MPI.COMM_WORLD
FOLDER = Path(sys.argv[1])
ROWS = 90
LINES = [f"{row % 2} 0:{row + 1} 1:{row % 7}" for row in range(ROWS)]
WHOLE = FOLDER / "train.txt"  # no suffix tells what it is
WIDTHS = "columns of dtrain: 2 on rank 0, 3 on rank 1"


def rows(matrix):
    """The rows that a matrix has, by the number in their first column."""
    return [int(number) - 1 for number in matrix.get_data()[:, 0].toarray().ravel()]


def everybodys(matrix):
    return sorted(number for part in WORLD.allgather(rows(matrix)) for number in part)


def warned(call):
    """What `call` returns, and the texts of what shanty warns of meanwhile, over all ranks."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = call()
    texts = [str(each.message) for each in said if each.category.__name__ == "OldNameWarning"]
    return result, WORLD.allgather(texts)


def at_descriptor(folder, number):
    """A name for `folder` that other ranks, which have other descriptors, do not find."""
    opened = os.open(folder, os.O_RDONLY)
    os.dup2(opened, number)
    return f"/proc/self/fd/{number}"


def check_nobody_is_anybody_before():
    assert xgb.rabit.get_rank() == 0
    assert xgb.rabit.get_world_size() == 1
    assert not xgb.rabit.is_distributed()
    xgb.rabit.finalize()
    whole = DMatrix(f"{WHOLE}?format=libsvm")
    assert rows(whole) == list(range(ROWS))


def check_init():
    import xgboost.rabit
    from xgboost import rabit

    assert xgboost.rabit is rabit is xgb.rabit
    arguments = [b"DMLC_TRACKER_URI=nowhere", "DMLC_TRACKER_PORT=9", b"rabit_debug=1"]
    _, said = warned(lambda: rabit.init(arguments))
    assert "rabit.init" in said[0][0]
    assert said[1:] == [[], []]
    rabit.init()  # once more changes nothing
    assert rabit.get_rank() == WORLD.rank
    assert rabit.get_world_size() == WORLD.size
    assert rabit.is_distributed() == 1
    assert rabit.get_processor_name().decode()
    assert rabit.version_number() == 0
    assert rabit.DTYPE_ENUM__[np.dtype("float64")] == 7


def check_names_that_never_were():
    raised(AttributeError, lambda: xgb.rabit.load_checkpoint, "load_checkpoint", "allreduce")


def check_broadcast():
    given = {"from": WORLD.rank, "array": np.arange(3)} if WORLD.rank == 1 else None
    found = xgb.rabit.broadcast(given, 1)
    assert found["from"] == 1
    assert found["array"].tolist() == [0, 1, 2]


def check_allreduce():
    rabit = xgb.rabit
    mine = np.array([WORLD.rank, 1 << WORLD.rank], np.int32)
    assert rabit.allreduce(mine, rabit.Op.SUM).tolist() == [3, 7]
    assert rabit.allreduce(mine, rabit.Op.MAX).tolist() == [2, 4]
    assert rabit.allreduce(mine, rabit.MIN).tolist() == [0, 1]
    assert rabit.allreduce(mine, 3).tolist() == [3, 7]  # OR
    assert mine.tolist() == [WORLD.rank, 1 << WORLD.rank]
    for kind in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64"):
        result = rabit.allreduce(np.ones((2, 2), kind), 2)
        assert result.dtype == kind
        assert result.tolist() == [3, 3, 3, 3]

    def prepare(data):
        data[:] = 5

    assert rabit.allreduce(np.zeros(2), rabit.Op.SUM, prepare).tolist() == [15, 15]
    raised(TypeError, lambda: rabit.allreduce([1], rabit.Op.SUM), "ndarray")


def check_tracker_print():
    xgb.rabit.tracker_print(f"printed by {WORLD.rank}")


def check_a_file_is_shared_out():
    for name in (str(WHOLE), WHOLE, f"{WHOLE}?format=libsvm", f"{WHOLE}#{FOLDER}/cache"):
        matrix, said = warned(lambda name=name: DMatrix(name, silent=True))
        assert isinstance(matrix, xgb.DMatrix)
        assert everybodys(matrix) == list(range(ROWS)), name
        assert 0 < matrix.num_row() < ROWS
        assert matrix.num_col() == 2
    assert "cache is left out" in said[0][0]
    assert everybodys(DMatrix(data=str(WHOLE))) == list(range(ROWS))


def check_files_that_are_split_already():
    """Each rank names a file of its own, and gets all of it."""
    own = FOLDER / f"train.{WORLD.rank}"
    own.write_text("\n".join(LINES[WORLD.rank :: WORLD.size]) + "\n")
    with redirect_stderr(io.StringIO()) as said:
        matrix = DMatrix(str(own))
        DMatrix(str(own))
    assert said.getvalue().count("each rank reads a file of its own") == (WORLD.rank == 0)
    assert rows(matrix) == list(range(WORLD.rank, ROWS, WORLD.size))
    assert everybodys(matrix) == list(range(ROWS))


def check_one_file_under_many_names():
    """Each in a folder that is there for one rank only, as on hosts of their own."""
    folder = FOLDER / f"host-{WORLD.rank}"
    folder.mkdir()
    (folder / "train.libsvm").write_text(WHOLE.read_text())
    parts = folder / "parts"
    parts.mkdir()
    for number in range(2):
        (parts / f"part-{number}").write_text("\n".join(LINES[number::2]) + "\n")
    own = at_descriptor(folder, 200 + WORLD.rank)
    for name in ("train.libsvm", "parts", "parts/part-*", f"parts/part-0;{own}/parts/part-1"):
        matrix = DMatrix(f"{own}/{name}")
        assert matrix.num_row() < ROWS, name
        assert everybodys(matrix) == list(range(ROWS)), name


def check_other_rows_under_one_name():
    folder = FOLDER / f"other-{WORLD.rank}"
    folder.mkdir()
    (folder / "train").write_text(f"0 0:{WORLD.rank + 1}\n")
    name = at_descriptor(folder, 200) + "/train"
    words = "/fd/200/train: rank 0 of 6 bytes, rank 1 of 6 bytes"
    raised(ValueError, lambda: DMatrix(name), "different files under one name", words)


def check_some_share_a_file():
    half = FOLDER / f"half.{WORLD.rank // 2}"
    if WORLD.rank in (0, 2):
        half.write_text("\n".join(LINES[WORLD.rank // 2 :: 2]) + "\n")
    WORLD.barrier()
    matrix = DMatrix(str(half))
    assert everybodys(matrix) == list(range(ROWS))
    assert (WORLD.rank == 2) == (matrix.num_row() == ROWS // 2)


def check_arrays_are_each_rank_s_own():
    values = np.arange(8.0).reshape(4, 2)
    matrix = DMatrix(values, np.ones(4), -999.0)  # the third was `missing` once
    assert matrix.num_row() == 4
    weighted = DMatrix(values, np.ones(4), np.full(4, 2.0))
    assert weighted.get_weight().tolist() == [2, 2, 2, 2]
    values[0, 0] = -999
    for between in ((), (None, None), (np.ones(4), None)):
        assert DMatrix(values, np.ones(4), *between, -999.0).num_nonmissing() == 7, between


def check_an_iterator_of_arrays():
    class Pieces(xgb.DataIter):
        number = 0

        def next(self, input_data):
            if self.number == 2:
                return False
            self.number += 1
            asked.append(xgb.rabit.get_rank())
            input_data(data=np.ones((3, 2)), label=np.arange(3) % 2)
            return True

        def reset(self):
            self.number = 0

    asked = []
    matrix = DMatrix(Pieces(cache_prefix=str(FOLDER / f"pieces-{WORLD.rank}")))
    assert matrix.num_row() == 6
    assert set(asked) == {WORLD.rank}
    assert xgb.train({}, matrix, 1).num_boosted_rounds() == 1


def check_one_rank_may_predict_by_itself():
    values, labels = np.arange(8.0).reshape(4, 2) + WORLD.rank, np.arange(4) % 2
    booster = xgb.train({"max_depth": 2}, DMatrix(values, labels), 1)
    if WORLD.rank == 1:
        whole = booster.predict(DMatrix(values))
        for rows_of_its_own in (csr_matrix(values), values.tolist(), DMatrix(values).slice([0, 1])):
            if not isinstance(rows_of_its_own, DMatrix):
                rows_of_its_own = DMatrix(rows_of_its_own)
            found = booster.predict(rows_of_its_own)
            assert found.tolist() == whole[: len(found)].tolist()
    mine = np.array([10 + WORLD.rank])  # with what has one rank's matrix been mistaken for?
    assert xgb.rabit.allreduce(mine, xgb.rabit.Op.SUM).tolist() == [33]
    wide = DMatrix(np.ones((4, 2 + WORLD.rank)), labels)
    raised(ValueError, lambda: xgb.train({}, wide, 1), WIDTHS)


def check_sparse_rows_of_different_widths():
    values, labels = csr_matrix(np.ones((4, 2 + WORLD.rank))), np.arange(4) % 2
    matrix = DMatrix(values, labels)
    assert matrix.num_col() == 4
    xgb.train({}, matrix, 1)
    matrix = DMatrix(values)
    matrix.set_label(labels)
    raised(ValueError, lambda: xgb.train({}, matrix, 1), WIDTHS)


def check_another_thread():
    """XGBoost's ranks are joined in one; in others each rank would train alone."""
    values, labels = np.arange(8.0).reshape(4, 2), np.arange(4) % 2
    made = DMatrix(values, labels)
    model = xgb.XGBClassifier(n_estimators=1)
    for work in (
        lambda: DMatrix(str(WHOLE)),
        lambda: xgb.train({}, made, 1),
        lambda: xgb.cv({}, made, 1, 2),
        lambda: model.fit(values, labels),
        xgb.rabit.init,
    ):
        with ThreadPoolExecutor(1) as thread:
            error = thread.submit(work).exception()
        assert "were joined in another thread" in str(error), error
    assert everybodys(DMatrix(str(WHOLE))) == list(range(ROWS))


def check_training_with_old_names():
    dtrain = DMatrix(str(WHOLE))
    history = {}
    params = {
        "silent": 1,
        "objective": "reg:linear",
        "tree_method": "gpu_hist",
        "gpu_id": 0,
        "predictor": "gpu_predictor",
        "max_depth": 2,
        "eta": 1,
        "device": "cpu",
    }

    def distance(predictions, matrix):
        return "distance", float(np.abs(predictions - matrix.get_label()).mean())

    def train():
        watch = [(dtrain, "train")]
        # evals, obj, feval, maximize, early stopping, history, verbose, by position
        return xgb.train(params, dtrain, 4, watch, None, distance, False, None, history, False)

    booster, said = warned(train)
    assert said[1:] == [[], []]
    (text,) = said[0]
    for words in ("verbosity=0", "reg:squarederror", "tree_method=hist", "predictor", "feval="):
        assert words in text, text
    assert len(history["train"]["distance"]) == 4
    assert len(set(WORLD.allgather(bytes(booster.save_raw())))) == 1
    _, said = warned(train)
    assert said == [[], [], []]  # once is enough

    limited, said = warned(lambda: booster.predict(dtrain, False, 2))
    assert "iteration_range=(0, 2)" in said[0][0]
    assert np.array_equal(limited, booster.predict(dtrain, iteration_range=(0, 2)))
    assert booster.best_ntree_limit == 4
    whole = booster.predict(dtrain, ntree_limit=booster.best_ntree_limit)
    assert np.array_equal(whole, booster.predict(dtrain))


def check_functions_imported_before_init():
    dtrain = DMatrix(str(WHOLE))
    history = {}
    params = {"silent": 1, "max_depth": 2}

    def half(predictions, matrix):
        return "half", 0.5

    train(params, dtrain, 2, [(dtrain, "train")], None, half, evals_result=history)
    assert history["train"]["half"] == [0.5, 0.5]
    assert len(cv(params, dtrain, 2, 3, feval=half)) == 2


def check_cross_validation():
    dtrain = DMatrix(str(WHOLE))
    found = xgb.cv({"silent": 1, "objective": "binary:logistic"}, dtrain, 2, 3, metrics="error")
    assert len(found) == 2
    assert len(set(WORLD.allgather(str(found)))) == 1


def check_learning_rates_and_a_loop_of_one_s_own():
    dtrain = DMatrix(str(WHOLE))
    booster = xgb.train({}, dtrain, 2, learning_rates=[0.5, 0.0001])
    other = xgb.train({}, dtrain, 2, learning_rates=lambda number, rounds: (0.5, 0.0001)[number])
    assert booster.get_dump() == other.get_dump()
    own = Booster({"silent": 1, "objective": "reg:linear"}, [dtrain])
    for number in range(own.load_rabit_checkpoint(), 2):
        own.update(dtrain, number)
        own.save_rabit_checkpoint()
    assert own.num_boosted_rounds() == 2


def check_exact_and_linear_models():
    dtrain = DMatrix(str(WHOLE))
    xgb.train({"tree_method": "exact"}, dtrain, 1)
    raised(ValueError, lambda: xgb.train({"booster": "gblinear"}, dtrain, 1), "gblinear")


def check_saving_and_going_on():
    dtrain = DMatrix(str(WHOLE))
    booster = xgb.train({"max_depth": 2}, dtrain, 2)
    path = FOLDER / "0001.model"
    if WORLD.rank == 0:
        booster.save_model(str(path))
        booster.dump_model(str(FOLDER / "dump.raw.txt"))
    WORLD.barrier()
    more = xgb.train({"max_depth": 2}, dtrain, 1, xgb_model=str(path))
    assert more.num_boosted_rounds() == 3
    assert Booster(model_file=str(path)).get_dump() == booster.get_dump()


def check_scikit_learn_s_classes():
    values, labels = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    model = xgb.XGBClassifier(n_estimators=3, silent=True, nthread=1)
    model.fit(values, labels, eval_set=[(values, labels)], early_stopping_rounds=2, verbose=False)
    assert model.early_stopping_rounds is None  # it was of this fit
    limited = model.predict_proba(values, ntree_limit=1)
    assert np.array_equal(limited, model.predict_proba(values, iteration_range=(0, 1)))
    limit = model.best_ntree_limit
    assert limit == model.best_iteration + 1
    best = model.predict_proba(values, ntree_limit=limit)
    assert np.array_equal(best, model.predict_proba(values))
    assert model.fit(values, labels).best_ntree_limit == 3


def refused(call, *words):
    """All ranks raise the same DataError."""
    from shanty.xgboost import DataError  # which rabit.init has loaded

    found = WORLD.allgather(raised(DataError, call, *words))
    assert len(set(found)) == 1, found


def check_what_ranks_must_have_alike():
    """Frames are each rank's own, so their categories are compared before the training."""
    import pandas as pd

    last = WORLD.rank == WORLD.size - 1
    frame = pd.DataFrame({"n": range(9), "kind": pd.Categorical(["a", "b", f"{last}"] * 3)})
    labels = np.arange(9) % 2
    matrix = DMatrix(frame, labels, enable_categorical=True)
    refused(lambda: train({}, matrix, 2), "column 'kind'", "True", "rank 2")
    refused(lambda: train({"max_depth": 2 + last}, DMatrix(frame[["n"]], labels), 2), "max_depth")
    model = xgb.XGBRegressor(n_estimators=2, enable_categorical=True, tree_method="hist")
    if hasattr(Booster, "get_categories"):
        model.fit(frame, labels)
        assert model.get_booster().get_categories(True).to_arrow()[1][1].to_pylist() == sorted(
            ["a", "b", "True", "False"]
        )
    else:
        refused(lambda: model.fit(frame, labels), "column 'kind'")
    some = labels * 0 if last else labels
    refused(lambda: xgb.XGBClassifier(n_estimators=2).fit(frame[["n"]], some), "the classes in y")


def check_a_metric_of_one_s_own_counts_rows():
    chance = np.random.default_rng(WORLD.rank)
    values, labels = chance.random((60, 3)), chance.random(60)
    mine = slice(0, [40, 20, 0][WORLD.rank])

    def own(guess, matrix):
        return "own", float(abs(guess - matrix.get_label()).mean())

    def wrong(labels, guess):
        return float(abs(guess - labels).mean())

    found = {}
    test = DMatrix(values[mine], labels[mine])
    train({"eval_metric": "mae"}, DMatrix(values, labels), 4, [(test, "test")], feval=own,
          evals_result=found, verbose_eval=False)  # fmt: skip
    assert np.allclose(found["test"]["own"], found["test"]["mae"], atol=2e-6), found
    model = xgb.XGBRegressor(n_estimators=3, eval_metric=["mae", wrong])
    model.fit(values, labels, eval_set=[(values[mine], labels[mine])], verbose=False)
    assert np.allclose(*model.evals_result()["validation_0"].values(), atol=2e-6)


def check_a_missing_file_is_every_rank_s_error():
    name = FOLDER / ("train.0" if WORLD.rank != 1 else "nowhere.libsvm")
    raised(ValueError, lambda: DMatrix(str(name)), "nowhere.libsvm")


def check_afterwards_each_is_by_itself():
    booster = xgb.train({"max_depth": 2}, DMatrix(str(WHOLE)), 2)
    xgb.rabit.finalize()
    xgb.rabit.finalize()
    assert (xgb.rabit.get_rank(), xgb.rabit.get_world_size()) == (0, 1)
    assert not xgb.rabit.is_distributed()
    whole = DMatrix(str(WHOLE))
    assert rows(whole) == list(range(ROWS))
    assert len(set(WORLD.allgather(booster.predict(whole).tobytes()))) == 1


def check_it_can_begin_again():
    xgb.rabit.init()
    assert xgb.rabit.get_rank() == WORLD.rank
    assert everybodys(DMatrix(str(WHOLE))) == list(range(ROWS))
    xgb.rabit.finalize()
    with xgb.rabit.RabitContext([]):
        assert xgb.rabit.get_world_size() == WORLD.size
    assert xgb.rabit.get_world_size() == 1


def begin():
    if WORLD.rank == 0:
        FOLDER.mkdir(exist_ok=True)
        WHOLE.write_text("\n".join(LINES) + "\n")
    WORLD.barrier()
