"""Training that goes on without the ranks that are lost, in an elastic run.

XGBoost's collectives fail when the connections to the other ranks break; its model then still is
that of the last round. So after a loss the ranks that are left join again, one of those that have
come furthest gives its model to all, and each goes on with the rows that it has.

XGBoost does not notice a lost rank by itself: it takes the end of a connection for a pause. A
thread that watches MPI breaks the connections (`communication.watched`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shanty.collectives import confirmation, survivors, world
from shanty.xgboost.agreement import same_model
from shanty.xgboost.communication import COLLECTIVE, Communicator, current, watched
from shanty.xgboost.consensus import together
from shanty.xgboost.errors import WorldError
from shanty.xgboost.installed import xgboost
from shanty.xgboost.stopping import Stopping

is_elastic = survivors.is_elastic


class Rounds(Stopping):
    """Calls the caller's callbacks, over all tries of one training, and knows its last round."""

    def __init__(self, callbacks: Sequence[Any], ranks: Communicator, weighted: bool) -> None:
        super().__init__(callbacks, ranks)
        self.done = 0  # rounds whose callbacks have been called
        self.stopped = False  # by a callback
        self.history: dict[str, dict[str, list[Any]]] = {}
        self.model: Any = None
        self.rows = 0  # of all ranks, when it began
        self._weighted = weighted  # a round changes the trees of those before: each is kept
        self._raw = b""
        self._begun = False
        self._start = 0  # rounds before this try
        self._given = 0  # rounds of the model that the caller gave

    def before_training(self, model: Any) -> Any:
        """Call each callback, once."""
        self._compares = bool(self._asks(bool(self._callbacks)))
        if not self._begun:
            self._begun = True
            for each in self._callbacks:
                model = each.before_training(model)
        self._start, self.model = self.done, model
        self._given = model.num_boosted_rounds() - self.done
        update, start = model.update, self._start

        def counted(matrix: Any, iteration: int, fobj: Any = None) -> None:
            update(matrix, iteration + start, fobj)  # what is drawn depends on it

        model.update = counted
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Whether training stops before this round."""
        if epoch == 0:
            evals_log.update(self.history)
        self.history = evals_log
        return super().before_iteration(model, epoch + self._start, evals_log)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Whether training stops after this round."""
        at = epoch + self._start
        stops = [each.after_iteration(model, at, evals_log) for each in self._callbacks]
        self.stopped = any(stops)
        self.done = at + 1  # also where a rank is lost while they are compared
        if self._weighted:
            self._raw = bytes(model.save_raw("ubj"))
        return self._agreed(self.stopped, f"after round {at}")

    def after_training(self, model: Any) -> Any:
        """Leave the callbacks to `end`: this try may not be the last."""
        return model

    def end(self, model: Any) -> Any:
        """Call each callback; returns the model of the whole training."""
        vars(model).pop("update", None)
        return super().after_training(model).reset()

    def take_over(self, rows: int) -> bytes:
        """Return the model of the last round, the same on all ranks; empty before the first one.

        rows: of this rank. All ranks that are left call it.
        """
        ranks = self._ranks
        seen = together(
            ranks, "going on", lambda _: (self.done, self.stopped, rows, self.rows), lambda x: x
        )
        most = max(done for done, *_ in seen)
        root = next(rank for rank, each in enumerate(seen) if each[0] == most)
        kept: tuple[bytes, Any] = b"", {}
        if ranks.rank == root and most:
            log = self.history.items()
            cut = {name: {of: each[:most] for of, each in found.items()} for name, found in log}
            kept = self._kept(), cut
        if ranks.mpi is not None:
            kept = ranks.mpi.bcast(kept, root)
        raw, self.history = kept
        if self.done < most:  # at most by one: each round needs all ranks
            model = xgboost.Booster(model_file=bytearray(raw))
            for each in self._callbacks:
                each.after_iteration(model, most - 1, self.history)
        self.done, self._raw = most, raw
        self.stopped = seen[root][1]
        left, self.rows = sum(each[2] for each in seen), max(each[3] for each in seen)
        if ranks.rank == 0:
            whose = f"{ranks.size} ranks are" if ranks.size > 1 else "this rank alone is"
            share = f"{left:,} of {self.rows:,} rows ({left / max(self.rows, 1):.0%})"
            where = f"from round {most}" if most else "from its beginning"
            print(
                f"shanty: training goes on {where}: {whose} left, with {share}",
                file=sys.stderr,
                flush=True,
            )
        return raw

    def _kept(self) -> bytes:
        if self._weighted:
            return self._raw
        model, rounds = self.model, self._given + self.done
        if model.num_boosted_rounds() > rounds:  # its metrics are missing
            model = model[:rounds]
        return bytes(model.save_raw("ubj"))


def train(
    params: Any,
    dtrain: Any,
    num_boost_round: int = 10,
    *,
    callbacks: Sequence[Any] | None = None,
    early_stopping_rounds: int | None = None,
    maximize: bool | None = None,
    verbose_eval: bool | int | None = True,
    evals_result: dict[str, Any] | None = None,
    xgb_model: Any = None,
    **options: Any,
) -> Any:
    """xgboost.train by all ranks, as long as one is left."""
    from mpi4py import MPI

    ranks = current()
    each_round = list(callbacks or ())
    if verbose_eval:
        each_round.append(xgboost.callback.EvaluationMonitor(period=int(verbose_eval)))
    if early_stopping_rounds:
        stop = xgboost.callback.EarlyStopping(rounds=early_stopping_rounds, maximize=maximize)
        each_round.append(stop)
    own = dict(params if isinstance(params, Mapping) else params or ())
    rounds = Rounds(each_round, ranks, own.get("booster") == "dart")
    again = False
    while True:
        try:
            model = xgb_model
            if again:
                model = bytearray(rounds.take_over(dtrain.num_row())) or xgb_model
            else:
                rounds.rows = together(ranks, "rows", lambda _: dtrain.num_row(), sum)
            left = 0 if rounds.stopped else num_boost_round - rounds.done
            with watched(ranks):
                booster = xgboost.train(
                    params, dtrain, left, callbacks=[rounds], verbose_eval=False,
                    xgb_model=model, **options,
                )  # fmt: skip
            booster = rounds.end(booster)
            same_model(ranks, booster)
            if not survivors.all_say(True):
                raise WorldError("another rank lost touch before it was through")
            confirmation.confirm_place()
            break
        except (xgboost.core.XGBoostError, WorldError, MPI.Exception) as error:
            if isinstance(error, xgboost.core.XGBoostError) and COLLECTIVE not in str(error):
                raise
            if "update" in (own.get("process_type"), own.get("booster")):
                raise
            ranks.give_up()
            if not world.restart(ranks.rejoin):
                raise
            again = True
        except Exception:
            survivors.leave()
            raise
    if evals_result is not None:
        evals_result.update(rounds.history)
    return booster
