"""A verb of the command line that takes nothing twice."""

from __future__ import annotations

__all__ = ["Command"]

from typing import Any

from typer.core import TyperCommand, TyperOption

from tmifpe.core.errors import InputError


class Command(TyperCommand):
    """Refuses an option that takes one value and is given two: the parser would silently keep the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        seen: set[str | None] = set()
        for parameter in order:
            if not isinstance(parameter, TyperOption) or parameter.multiple or parameter.count:
                continue
            if parameter.is_flag and not parameter.secondary_opts:  # --json --json says the same thing twice
                continue
            if parameter.name in seen:
                names = " or ".join((*parameter.opts, *parameter.secondary_opts))
                raise InputError(f"{names} is given twice; give it once")
            seen.add(parameter.name)
        return super().parse_args(ctx, args)
