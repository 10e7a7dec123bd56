"""tmifpe list: what there is, by name."""

from __future__ import annotations

__all__ = ["listing"]

from typing import Annotated

import typer

KINDS = {
    "losses": "tmifpe.losses:LOSSES",
    "norms": "tmifpe.norms:NORMS",
    "attacks": "tmifpe.attacks:ATTACKS",
    "models": "tmifpe.models:MODELS",
    "data": "tmifpe.data:DATA",
    "flags": "tmifpe.checks.flags:FLAGS",
}


def listing(kind: Annotated[str, typer.Argument(help="losses, norms, attacks, models, data or flags.")]) -> None:
    """List losses, norms, attacks, models, data sources or flags."""
    import importlib

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tmifpe.core.errors import did_you_mean

    if kind not in KINDS:
        raise did_you_mean("kind of thing", kind, KINDS)
    module, _, attribute = KINDS[kind].partition(":")
    registry = getattr(importlib.import_module(module), attribute)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    for name in registry:
        table.add_row(escape(name), escape(registry.summary(name)))
    Console().print(table)
