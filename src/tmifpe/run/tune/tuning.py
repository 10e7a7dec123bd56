"""What the executor has chosen, as plain values."""

from __future__ import annotations

__all__ = ["MODES", "Tuning", "tune_mode"]

import dataclasses
import math
import os
from dataclasses import dataclass, replace
from typing import Any

from tmifpe.core.errors import InputError, shown

MODES = ("auto", "off", "full")
"""`auto` measures for about 2 % of the work, `full` for as long as it takes, `off` changes nothing."""
VARIABLE = "TMIFPE_TUNE"
"""The environment variable that says what to do where the request does not."""
_MOST = 1 << 20


@dataclass(frozen=True)
class Tuning:
    """How the attack runs the model. Recorded with a run and no part of its key: gradients may differ in their last
    digits, and every success is verified by the untouched model.

    >>> Tuning(folded=True, gain=1.3).changes_model, Tuning(threads=1).changes_model
    (True, False)
    """

    channels_last: bool = False
    """Images and weights with the channels as their last dimension in memory."""
    folded: bool = False
    """BatchNorm and input normalisation are part of the layers' weights, rectifiers work in place, and the gradient at
    the images is a matrix product."""
    compiled: bool = False
    """By `torch.compile`."""
    autocast: str = ""
    """`bf16` or `fp16` for attacks in that precision; empty for that of the run."""
    threads: int | None = None
    """Of torch, on a CPU; None for as many as there were."""
    parts: int | None = None
    """To which the rows are dealt, each a loop in a thread of its own (`run_parts`); None for one loop."""
    batch_size: int | None = None
    """Rows per batch; None for that of the plan."""
    gain: float = 1.0
    """How many times as fast a forward and backward pass has become."""
    seconds: float = 0.0
    """What choosing took ..."""
    passes: int = 0
    """... and the images that were passed forwards and backwards for it."""

    @property
    def changes_model(self) -> bool:
        """Whether the attack follows a copy of the model."""
        return self.channels_last or self.folded or self.compiled or bool(self.autocast) or bool(self.parts)

    @property
    def elsewhere(self) -> Tuning:
        """What of it holds for a worker, which has as many threads as it was given."""
        return replace(self, threads=None, parts=None)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Tuning:
        """As any version stored it, which may be anyone's file: fields unknown here are ignored, odd values refused."""
        known = {field.name: plain[field.name] for field in dataclasses.fields(cls) if field.name in plain}
        found = cls(**known)
        flags = (found.channels_last, found.folded, found.compiled)
        sizes = [size for size in (found.threads, found.parts, found.batch_size) if size is not None]
        if (
            not all(isinstance(flag, bool) for flag in flags)
            or not all(type(size) is int and 1 <= size <= _MOST for size in sizes)
            or found.autocast not in ("", "bf16", "fp16")
            or not all(math.isfinite(float(number)) for number in (found.gain, found.seconds))
            or type(found.passes) is not int
        ):
            raise ValueError("no tuning")
        return found

    def __str__(self) -> str:
        """What was chosen, in a few words."""
        words = [
            *(["channels last"] if self.channels_last else []),
            *(["layers folded"] if self.folded else []),
            *(["compiled"] if self.compiled else []),
            *([f"attack in {self.autocast}"] if self.autocast else []),
            *([f"rows in {self.parts} parts"] if self.parts else []),
            *([f"{self.threads} thread{'s' * (self.threads > 1)}"] if self.threads and not self.parts else []),
            *([f"batches of {self.batch_size}"] if self.batch_size else []),
        ]
        return f"{', '.join(words)}: {self.gain:.2f} times as fast" if words else "as it is"


def tune_mode(given: str | None) -> str:
    """The mode of a request: as given, else that of the environment variable `TMIFPE_TUNE`, else `auto`."""
    mode = given if given is not None else os.environ.get(VARIABLE) or "auto"
    if mode not in MODES:
        raise InputError(f"tune must be {', '.join(MODES[:-1])} or {MODES[-1]}, got {shown(mode)}")
    return mode
