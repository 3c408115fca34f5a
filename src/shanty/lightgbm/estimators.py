"""scikit-learn's classes of LightGBM, trained over all ranks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from shanty.lightgbm import network
from shanty.lightgbm.installed import lightgbm
from shanty.lightgbm.training import agree, parameters, reports, same_model

_coding = threading.Lock()  # the module's coder is one for all threads


class _Distributed:
    """What the classes have in common: `fit` gets this rank's rows, and all get the same model."""

    def fit(self, X: Any, y: Any, *args: Any, callbacks: Any = None, **options: Any) -> Any:  # noqa: N803
        """As LightGBM's, by all ranks; X, y and the like are this rank's rows."""
        network.init()
        own: Any = self
        agree(own.get_params(), own.n_estimators, X, {})
        with _one_coding():
            super().fit(X, y, *args, callbacks=[*reports(), *(callbacks or ())], **options)  # type: ignore[misc]
        own._Booster = same_model(own._Booster, own._process_params(stage="fit"))
        return self

    def _process_params(self, stage: str) -> dict[str, Any]:
        values: dict[str, Any] = super()._process_params(stage=stage)  # type: ignore[misc]
        return parameters(values) if stage == "fit" else values


@contextlib.contextmanager
def _one_coding() -> Iterator[None]:
    """Have classes counted over all ranks: one rank's rows may not have all of them."""
    encoder = getattr(lightgbm.sklearn, "_LGBMLabelEncoder", None)
    if encoder is None or network.size() == 1:
        yield
        return
    kinds: list[Any] = []

    class OverRanks(encoder):  # type: ignore[misc, valid-type]
        def fit(self, y: Any) -> Any:
            if not kinds:
                kinds.append(np.unique(np.concatenate(network.gather(np.unique(y)))))
            return super().fit(kinds[0])

    with _coding:
        lightgbm.sklearn._LGBMLabelEncoder = OverRanks
        try:
            yield
        finally:
            lightgbm.sklearn._LGBMLabelEncoder = encoder


class LGBMClassifier(_Distributed, lightgbm.LGBMClassifier):  # type: ignore[misc]
    """lightgbm.LGBMClassifier over all ranks."""


class LGBMRegressor(_Distributed, lightgbm.LGBMRegressor):  # type: ignore[misc]
    """lightgbm.LGBMRegressor over all ranks."""


class LGBMRanker(_Distributed, lightgbm.LGBMRanker):  # type: ignore[misc]
    """lightgbm.LGBMRanker over all ranks; `group` is of this rank's rows."""
