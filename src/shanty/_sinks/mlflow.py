"""MLflow: a store in the run's artifacts, or the server of MLFLOW_TRACKING_URI.

Numbers become metrics, texts tags. The experiment is MLFLOW_EXPERIMENT_NAME, else "shanty". An
MLflow run that the script itself has started is left alone. The store can also be reached as
`mlflow-store` beside the artifacts.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shanty._sinks.record import Place, Record


class Sink:
    """A run of MLflow."""

    def __init__(self, place: Place) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = _link(place.folder.absolute()).as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # of versions from 3.5 on
        # A server that does not answer must not keep the ranks waiting for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow.entities import Metric, RunTag
        from mlflow.tracking import MlflowClient

        self._metric, self._tag = Metric, RunTag
        self._client = MlflowClient(tracking_uri=address)
        with _alone(place.folder):
            experiment = self._experiment()
        tags = {"shanty.run": place.run, "shanty.rank": str(place.rank)}
        made = self._client.create_run(experiment, run_name=place.title, tags=tags)
        self._run: str = made.info.run_id

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "shanty"
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def write(self, record: Record) -> None:
        """Add all values in one request."""
        at = int(record.time * 1000)
        metrics = [self._metric(name, n, at, record.step) for name, n in record.numbers.items()]
        tags = [self._tag(name, text) for name, text in record.texts.items()]
        self._client.log_batch(self._run, metrics=metrics, tags=tags)

    def close(self, *, failed: bool) -> None:
        """Record how the script ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _link(folder: Path) -> Path:
    """Another path to the folder: MLflow rejects the path of a store that contains `artifacts`."""
    link = folder.parent.with_name("mlflow-store")
    with suppress(FileExistsError):  # another rank's
        link.symlink_to(folder)
    return link


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets in one rank of this host at a time: a file store lets two create one experiment."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
