"""Choosing how to run a model: every candidate takes turns with the best so far, on the user's own images."""

from __future__ import annotations

__all__ = ["SHARE", "choose"]

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tmifpe.attacks import Attack, attack_spelling
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.parts import FEWEST
from tmifpe.core.extensions import is_external
from tmifpe.core.types import Data
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.spec import Plan
from tmifpe.run.tune.bench import BETTER, PASSES, Bench
from tmifpe.run.tune.tuning import Tuning

SHARE = 0.02
"""Of the run's gradient steps, at most, in images and in time."""
_RACES = 2
"""For which there should be time, the passes that begin them included."""
_FEWEST = 4
"""Images in a pass that is timed."""
_SHORTEST = 0.02
"""Seconds: to choose in less would be to guess."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LONG = 0.02
"""Seconds of a pass from which on rows are dealt to parts: several times what a look takes in Python, of which only one
thread runs at a time. It cannot be raced on fewer rows than the run will have: the share of Python would be larger."""
_COMPILING = 60.0
"""Seconds that compiling a network takes, about."""


def choose(
    prepared: PreparedModel,
    data: Data,
    plan: Plan,
    attack: Attack,
    mode: str = "auto",
    *,
    here: bool = True,
    grows: bool = True,
) -> Tuning | None:
    """The fastest way found to run this model: as it is where the run is too short to look for another, or the model
    gives other logits the second time; None where it was not asked at all.

    `here`: the run is computed in this process, so that its threads count. `grows`: batches may be larger than planned,
    up to a shard. The work is that of the first stage on all examples: later stages attack few.
    """
    steps, most = attack.stages[0].budget.backwards, min(plan.batch_size, len(data))
    images = SHARE * plan.n * steps if mode == "auto" else math.inf
    size = most if math.isinf(images) else min(most, int(images) // (_RACES * PASSES))
    if not steps or size < min(_FEWEST, most):
        return None
    x, _ = data.fetch(range(size))
    with preserved_state(prepared.model, prepared.device):
        try:
            bench = Bench(prepared, x.to(prepared.device, prepared.image_dtype))
        except Exception:  # the run will meet the same, and says it in one sentence
            return None
        if mode == "auto":
            bench.limit = SHARE * bench.first / size * plan.n * steps
        if bench.limit < _SHORTEST or not bench.steady:
            return Tuning(passes=bench.passes)
        best, raced = Tuning(), {Tuning()}
        for number, change in enumerate(_changes(bench, attack, most, here)):
            likely = number == 0 and "folded" in change
            # A race takes about twice its passes, since a copy is made; some are worth going over the limit.
            if not likely and not change.get("parts") and bench.left < 2 * PASSES * bench.first:
                break
            candidate = replace(best, gain=1.0, **change)
            if candidate not in raced:
                raced.add(candidate)
                if "parts" in change and size < most:
                    best = bench.trusted(best, candidate)
                else:
                    # What most networks gain by must only not be seen to lose.
                    best = bench.race(best, candidate, 1 / BETTER if likely else BETTER)
        if grows:
            best = _grown(bench, best, plan, size)
    return replace(best, seconds=time.perf_counter() - bench.began, passes=bench.passes)


def _grown(bench: Bench, best: Tuning, plan: Plan, seen: int) -> Tuning:
    """With batches twice as large, as long as that is faster; where two make a shard, they are one in any case: what
    is left for the second takes as many looks as the first, with few rows in each."""
    if plan.batch_size < plan.shard_size <= 2 * plan.batch_size:
        return replace(best, batch_size=plan.shard_size)
    if seen < plan.batch_size:
        return best
    size = 2 * plan.batch_size
    while size <= plan.shard_size and bench.left > PASSES * bench.first * size / plan.batch_size:
        larger = bench.race(best, replace(best, batch_size=size))
        if larger is best:
            break
        best, size = larger, 2 * size
    return best


def _changes(bench: Bench, attack: Attack, most: int, here: bool) -> Iterator[dict[str, Any]]:
    """What to try, one after another, each on top of what was found better; `most` rows will be in a batch."""
    prepared = bench.prepared
    copies, images = _may_copy(prepared), bench.x.dim() == 4
    threads = torch.get_num_threads() if here and prepared.device.type == "cpu" else 1
    count = min(threads, most // FEWEST)
    # Nobody knows whether code from outside can run in several threads at once.
    apart = count > 1 and not is_external(attack_spelling(attack)) and bench.first / len(bench.x) * most > _LONG
    parts: dict[str, Any] = {"parts": count, "threads": max(1, threads // count)} if apart else {}
    if copies:
        # Most networks gain by both, and a short run has time for one race only.
        yield {"folded": True, "channels_last": images}
        if parts:
            yield parts
        if images:
            yield {"channels_last": True}
        yield {"folded": True}
        # Where both won, one may still be in the way.
        yield {"folded": False}
        yield {"channels_last": False}
        if prepared.device.type == "cuda":
            yield {"autocast": "bf16"}
    if threads > 1:
        yield {"threads": 1, "parts": None}
    if copies and not _smooths(attack) and bench.left > _COMPILING:
        yield {"compiled": True, "parts": None, "threads": None}


def _may_copy(prepared: PreparedModel) -> bool:
    """Whether a copy of the model can stand in for it: not where its modules are named, watched or compiled, and not
    in a precision that was chosen for its rounding."""
    model = prepared.model
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        return False
    watched = any(getattr(module, name, None) for module in model.modules() for name in _HOOKS)
    return not watched and not prepared.straight_through and prepared.dtype == torch.float32


def _smooths(attack: Attack) -> bool:
    """Whether a stage smooths the backward pass, which it cannot in a compiled network."""
    return re.search(r"smooth=(?!0\.0\b)", attack_spelling(attack)) is not None
