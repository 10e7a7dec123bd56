"""A reason to doubt a number."""

from __future__ import annotations

__all__ = ["Flag"]

from dataclasses import dataclass

from tmifpe.core.errors import as_options


@dataclass(frozen=True)
class Flag:
    """A reason to doubt the number: what was seen, and what to do about it.

    Options are in backticks, with their Python names; `on_command_line` turns them into options of the command.

    >>> Flag("randomised", "...", 'Try `loss="tmifpe"`, `batch_size=8` and more `steps`.').on_command_line().advice
    'Try --loss tmifpe, --batch-size 8 and more --steps.'
    """

    name: str
    seen: str
    advice: str

    def on_command_line(self) -> Flag:
        return Flag(self.name, as_options(self.seen), as_options(self.advice))
