"""Timing a model on real images: forward and backward passes of two contestants in turns."""

from __future__ import annotations

__all__ = ["BETTER", "PASSES", "Bench"]

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tmifpe.attacks.loop.parts import PartedQueries
from tmifpe.attacks.loop.queries import Queries
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.tune.executor import followed, tuned, using_threads
from tmifpe.run.tune.tuning import Tuning

_ROUNDS = 3
PASSES = 2 * (1 + _ROUNDS)
"""Of a race: each side has one that warms up and is compared, and then the timed ones."""
BETTER = 1.03
"""How much faster a candidate must be: less is noise."""
_LOGITS = 1e-5
"""How far the logits of a candidate may be from the model's own, in units of the largest (of 1 at least)."""
_GRADIENTS = 0.1
"""And its gradients. Rounding switches some units on or off; what tracing followed wrongly is not near at all."""


@dataclass
class Bench:
    """Images to time models on, and what has been spent so far."""

    prepared: PreparedModel
    x: Tensor
    limit: float = math.inf
    """Seconds that may be spent."""
    began: float = field(default_factory=time.perf_counter)
    passes: int = 0
    """Images passed forwards and backwards."""

    def __post_init__(self) -> None:
        plain = Queries(self.prepared.model, self.prepared.dtype)
        self._contestants: dict[Tuning, Queries] = {Tuning(): plain}
        _, cold, _ = self._pass(plain, self.x)
        self.first, self._logits, self._grad = self._pass(plain, self.x)
        self.steady = bool((cold == self._logits).all())
        """Whether the model gives the same images the same logits."""

    @property
    def left(self) -> float:
        """Seconds."""
        return self.limit - (time.perf_counter() - self.began)

    def race(self, best: Tuning, candidate: Tuning, least: float = BETTER) -> Tuning:
        """The candidate with its gain, if it is at least so many times as fast, else the best so far."""
        mine, theirs = self._queries(best), self._queries(candidate)
        if mine is None or theirs is None or not self._warm(theirs, candidate):
            return best
        # On a machine that others use, the time of this process alone says more; not where threads wait for each other,
        # which counts as work.
        threads = {side.threads or torch.get_num_threads() for side in (best, candidate)}
        alone = self.prepared.device.type == "cpu" and threads == {1} and not best.parts and not candidate.parts
        clock = time.process_time if alone else time.perf_counter
        sides = ((mine, best), (theirs, candidate))
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for (queries, tuning), taken in zip(sides, times, strict=True):
                taken.append(self._seconds(queries, tuning, clock))
        ratio = min(times[0]) / min(times[1])
        return replace(candidate, gain=best.gain * ratio) if ratio > least else best

    def trusted(self, best: Tuning, candidate: Tuning) -> Tuning:
        """The candidate if it gives what the model gives, however long it takes."""
        queries = self._queries(candidate)
        right = queries is not None and self._warm(queries, candidate)
        return replace(candidate, gain=best.gain) if right else best

    def _queries(self, tuning: Tuning) -> Queries | None:
        """Of the model as `tuning` says; None where that cannot be made."""
        key = replace(tuning, threads=tuning.threads if tuning.parts else None, batch_size=None, gain=1.0)
        if key not in self._contestants:
            try:
                made = tuned(self.prepared, key)
            except Exception:  # torch.compile fails in many ways where its compiler is missing
                return None
            if made.fast is None:
                return None
            with using_threads(tuning.threads):  # parts take their number from here
                self._contestants[key] = followed(made, Queries(made.model, made.dtype))
        return self._contestants[key]

    def _warm(self, queries: Queries, tuning: Tuning) -> bool:
        """Whether the first pass works and gives what the untouched model gives."""
        try:
            with using_threads(tuning.threads):
                _, logits, grad = self._pass(queries, self._images(tuning))
        except Exception:  # a compiler fails in many ways, and memory may run out: whatever fails is not used
            return False
        logits, grad = logits[: len(self.x)], grad[: len(self.x)]
        size = self._logits.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
        near = bool(((logits - self._logits).abs() <= _LOGITS * size).all()) or bool(tuning.autocast)
        same = bool((logits.argmax(dim=1) == self._logits.argmax(dim=1)).all()) or bool(tuning.autocast)
        off = torch.linalg.vector_norm(grad - self._grad)
        return near and same and bool(off <= _GRADIENTS * torch.linalg.vector_norm(self._grad))

    def _seconds(self, queries: Queries, tuning: Tuning, clock: Callable[[], float]) -> float:
        """Per image."""
        x = self._images(tuning)
        with using_threads(tuning.threads):
            return self._pass(queries, x, clock)[0] / len(x)

    def _images(self, tuning: Tuning) -> Tensor:
        size = tuning.batch_size or len(self.x)
        return self.x if size <= len(self.x) else self.x.repeat(-(-size // len(self.x)), *[1] * (self.x.dim() - 1))

    def _pass(
        self, queries: Queries, x: Tensor, clock: Callable[[], float] = time.perf_counter
    ) -> tuple[float, Tensor, Tensor]:
        """Seconds, logits and gradient of one forward and backward pass."""

        def value(logits: Tensor) -> Tensor:
            return logits.sum(dim=1)

        self.passes += len(x)
        began = self._now(clock)
        if isinstance(queries, PartedQueries):
            parts, pieces = queries.parts(), x.tensor_split(len(queries.copies))
            found = queries.each(lambda k: parts[k].look(pieces[k], value))
        else:
            found = [queries.look(x, value)]
        seconds = self._now(clock) - began
        grads = [one.grad for one in found if one.grad is not None]
        logits = torch.cat([one.logits for one in found]).float()
        return seconds, logits, torch.cat(grads) if grads else torch.zeros_like(x)

    def _now(self, clock: Callable[[], float]) -> float:
        if self.prepared.device.type == "cuda":
            torch.cuda.synchronize(self.prepared.device)
        return clock()
