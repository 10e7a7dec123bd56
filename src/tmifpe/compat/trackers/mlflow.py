"""A result in MLflow (extra `mlflow`)."""

from __future__ import annotations

__all__ = ["log_result"]

import os
import time
from typing import Any

from tmifpe.compat.trackers.numbers import numbers_of, settings_of, title_of
from tmifpe.core.extras import import_extra
from tmifpe.run.result import Result

_LONGEST = 500
"""What every store of MLflow takes as the value of a tag."""


def log_result(result: Result, where: str | None = None, step: int = 0) -> None:
    """Metrics, and what was evaluated as tags, in the active run; without one, or in another place, in a new run.

    where: a tracking URI, such as `http://localhost:5000` or `sqlite:///mlflow.db`; by default MLflow's own, from
    MLFLOW_TRACKING_URI. A new run goes to the experiment MLFLOW_EXPERIMENT_NAME, or else to `tmifpe`.
    """
    mlflow: Any = import_extra("mlflow", "MLflow runs", "mlflow")
    numbers, settings = numbers_of(result), settings_of(result)
    client = mlflow.MlflowClient(tracking_uri=where)  # for the caller, the URI and the active run stay as they are
    active = mlflow.active_run() if where is None else None
    run = active.info.run_id if active else _begun(client, title_of(result))
    now = int(time.time() * 1000)
    metrics = [mlflow.entities.Metric(name, number, now, step) for name, number in numbers.items()]
    tags = [mlflow.entities.RunTag(f"tmifpe.{name}", text[:_LONGEST]) for name, text in settings.items()]
    client.log_batch(run, metrics=metrics, tags=tags)
    if not active:
        client.set_terminated(run)


def _begun(client: Any, title: str) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "tmifpe"
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    return client.create_run(experiment, run_name=title).info.run_id
