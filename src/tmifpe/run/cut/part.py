"""`--shard 3/16`: the part of a run that one array job computes, of the shards that are the same on every machine."""

from __future__ import annotations

__all__ = ["RunPart", "parse_part"]

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tmifpe.core.errors import InputError, shown

# Where schedulers say which job of an array this is: index, first index, step, number of jobs or last index.
# A variable that is missing has the default after it; "" says that the scheduler does not tell.
_SCHEDULERS: tuple[tuple[str, str, str, str, str], ...] = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT", ""),
    ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_STEPSIZE", "", "SGE_TASK_LAST"),
    ("LSB_JOBINDEX", "", "LSB_JOBINDEX_STEP", "", "LSB_JOBINDEX_END"),
    ("PBS_ARRAY_INDEX", "", "", "", ""),
    ("AWS_BATCH_JOB_ARRAY_INDEX", "0", "", "AWS_BATCH_JOB_ARRAY_SIZE", ""),
    ("JOB_COMPLETION_INDEX", "0", "", "", ""),
    ("CI_NODE_INDEX", "", "", "CI_NODE_TOTAL", ""),
    ("CIRCLE_NODE_INDEX", "0", "", "CIRCLE_NODE_TOTAL", ""),
    ("BUILDKITE_PARALLEL_JOB", "0", "", "BUILDKITE_PARALLEL_JOB_COUNT", ""),
)
_PART = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")
_AUTO = re.compile(r"auto(?:/([0-9]{1,9}))?")


@dataclass(frozen=True)
class RunPart:
    """Every `count`-th shard of a run from the `index`-th on, counted from 1.

    >>> list(RunPart(2, 3).of(range(8)))
    [1, 4, 7]
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise InputError(f"shard {self.index}/{self.count} does not exist; shards count from 1/N to N/N")

    def of(self, shards: range) -> range:
        return shards[self.index - 1 :: self.count]

    @property
    def folder(self) -> str:
        """What its own store is called, within the store of the run."""
        return f"shard-{self.index}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_part(text: object, environment: Mapping[str, str] = os.environ) -> RunPart:
    """`3/16`; `auto` from what the scheduler says of this job; `auto/16` where it does not say how many there are.

    >>> str(parse_part("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_STEP": "2",
    ...                         "SLURM_ARRAY_TASK_COUNT": "4"}))
    '3/4'
    """
    if isinstance(text, RunPart):
        return text
    if isinstance(text, str) and (match := _PART.fullmatch(text.strip())):
        return RunPart(int(match[1]), int(match[2]))
    if isinstance(text, str) and (match := _AUTO.fullmatch(text.strip())):
        return _scheduled(environment, int(match[1]) if match[1] else None)
    raise InputError(f"a shard is written I/N, auto or auto/N, such as 3/16, got {shown(text)}")


def _scheduled(environment: Mapping[str, str], stated: int | None) -> RunPart:
    for index, first, step, count, last in _SCHEDULERS:
        if index not in environment:
            continue
        number = _number(environment, index)
        begin = int(first) if first.isdigit() else _number(environment, first, 1)
        stride = _number(environment, step, 1) or 1
        if stated is None and count in environment:
            stated = _number(environment, count)
        if stated is None and last in environment:
            stated = (_number(environment, last) - begin) // stride + 1
        if stated is None:
            raise InputError(f"{index} says which job this is but not of how many; write `shard=auto/N`")
        place, rest = divmod(number - begin, stride)
        if rest or not 0 <= place < stated:
            raise InputError(
                f"{index}={number} is not one of {stated} jobs that count from {begin} in steps of {stride}; give the "
                "array as a range, such as 1-16, or write `shard=I/N`"
            )
        return RunPart(place + 1, stated)
    known = ", ".join(names[0] for names in _SCHEDULERS)
    raise InputError(f"`shard=auto`: this is no array job, since none of {known} is set; write `shard=I/N`")


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InputError(f"{name} is {shown(text)}, not a whole number; write `shard=I/N`") from None
