"""A result in Weights & Biases (extra `wandb`)."""

from __future__ import annotations

__all__ = ["log_result"]

import os
from typing import Any

from tmifpe.compat.trackers.numbers import numbers_of, settings_of, title_of
from tmifpe.core.extras import import_extra
from tmifpe.run.result import Result


def log_result(result: Result, where: str | None = None, step: int | None = None) -> None:
    """Numbers in the history, and what was evaluated in the config, of the run that `wandb.init` began; without one, or
    in another project, of a new run.

    where: PROJECT or ENTITY/PROJECT; by default WANDB_PROJECT, or else `tmifpe`. With WANDB_MODE=offline it is written
    to disk only.
    """
    wandb: Any = import_extra("wandb", "Weights & Biases runs", "wandb")
    numbers, settings = numbers_of(result), settings_of(result)
    active = wandb.run if where is None else None
    run = active or _begun(wandb, where or os.environ.get("WANDB_PROJECT") or "tmifpe", title_of(result))
    run.config.update({f"tmifpe/{name}": text for name, text in settings.items()}, allow_val_change=True)
    run.log({f"tmifpe/{name}": number for name, number in numbers.items()}, step=step)
    if not active:
        run.finish()


def _begun(wandb: Any, where: str, title: str) -> Any:
    entity, _, project = where.rpartition("/")
    # What is printed here is the command's own; a run of the caller stays the current one.
    quiet = wandb.Settings(console="off", silent=True, disable_git=True)
    return wandb.init(project=project, entity=entity or None, name=title, reinit="create_new", settings=quiet)
