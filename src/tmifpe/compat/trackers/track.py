"""Which tracker, and where: `mlflow:http://localhost:5000`, `wandb:PROJECT`, `tensorboard:DIR`."""

from __future__ import annotations

__all__ = ["TRACKERS", "check_tracker", "track"]

from importlib import import_module

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.extras import import_extra
from tmifpe.run.result import Result

TRACKERS = {"mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "Weights & Biases"}


def track(result: Result, to: str, *, step: int | None = None) -> None:
    """Tell a tracker of a result: accuracies, interval and cost as numbers, what was evaluated as text.

    to: `mlflow[:URI]`, `wandb[:PROJECT]` or `tensorboard[:DIR]`. Without a place, MLflow and Weights & Biases log to
    the run that is active, if there is one.

    >>> import tempfile
    >>> import tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=4)
    >>> result = tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.1), "quick", checks=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     track(result, f"tensorboard:{folder}")
    """
    name, where = _parsed(to)
    log = import_module(f"tmifpe.compat.trackers.{name}").log_result
    try:
        log(result, where, **({} if step is None else {"step": step}))
    except InputError:
        raise
    except Exception as error:  # no server, no login, a full disk: whatever the package raises
        raise InputError(f"{TRACKERS[name]} did not take the result: {first_line(error)}") from error


def check_tracker(to: str) -> None:
    """`InputError` if there is no such tracker or its package is missing: said before the work, not after it."""
    name, _ = _parsed(to)
    import_extra(name, f"{TRACKERS[name]} runs", name)


def _parsed(to: str) -> tuple[str, str | None]:
    name, _, where = to.partition(":")
    if name not in TRACKERS:
        raise did_you_mean("tracker", name, TRACKERS)
    return name, where or None
