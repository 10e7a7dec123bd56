"""tmifpe list: what there is, by name; and the same names for the shell to complete."""

from __future__ import annotations

__all__ = [
    "KINDS",
    "complete_attacks",
    "complete_data",
    "complete_losses",
    "complete_models",
    "complete_norms",
    "listing",
    "read_catalogue",
]

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tmifpe.core.registry import Registry

KINDS = {
    "losses": "losses/catalogue.py:LOSSES",
    "norms": "norms/catalogue.py:NORMS",
    "attacks": "attacks/catalogue.py:ATTACKS",
    "models": "models/catalogue.py:MODELS",
    "data": "data/catalogue.py:DATA",
    "flags": "checks/flags.py:FLAGS",
}


@cache
def read_catalogue(kind: str) -> Registry[Any]:
    """The registry of that kind, from its file alone: to import its package would be to wait for torch."""
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    import tmifpe

    place, _, name = KINDS[kind].partition(":")
    spec = spec_from_file_location(f"_tmifpe_catalogue_of_{kind}", Path(tmifpe.__file__).parent / place)
    if spec is None or spec.loader is None:
        raise ImportError(place)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look a class's module up there
    spec.loader.exec_module(module)
    return getattr(module, name)


def _completer(*kinds: str) -> Callable[[str], Iterator[tuple[str, str]]]:
    """The names that continue what was typed: of a list, what follows its last comma or plus sign."""

    def complete(incomplete: str) -> Iterator[tuple[str, str]]:
        begun = re.match(r".*[,+]|", incomplete)
        before = begun[0] if begun else ""
        for kind in kinds:
            registry = read_catalogue(kind)
            for name in registry:
                if name.startswith(incomplete[len(before) :]):
                    yield before + name, registry.summary(name)

    return complete


complete_models = _completer("models")
complete_data = _completer("data")
complete_norms = _completer("norms")
complete_losses = _completer("losses")
complete_attacks = _completer("attacks", "losses")


def _complete_kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def listing(
    kind: Annotated[
        str,
        typer.Argument(help="losses, norms, attacks, models, data or flags.", autocompletion=_complete_kinds),
    ],
) -> None:
    """List losses, norms, attacks, models, data sources or flags."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tmifpe.core.errors import did_you_mean

    if kind not in KINDS:
        raise did_you_mean("kind of thing", kind, KINDS)
    registry = read_catalogue(kind)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    for name in registry:
        table.add_row(escape(name), escape(registry.summary(name)))
    Console().print(table)
