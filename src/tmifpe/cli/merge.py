"""tmifpe runs merge: one run out of the stores of its parts."""

from __future__ import annotations

__all__ = ["merge"]

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tmifpe.store.merge import Merged

_LISTED = 20  # shards, before the rest is counted


def merge(
    stores: Annotated[list[str], typer.Argument(help="The stores of the parts, e.g. tmifpe-runs/shard-*.")],
    into: Annotated[str, typer.Option(help="The store to merge them into.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Merge what array jobs have computed; say what is missing and what is there twice."""
    from rich.console import Console

    from tmifpe.cli import console
    from tmifpe.store.merge import merge as merged_into

    merged = merged_into(stores, into)
    if json:
        console.print_json({"runs": [_to_json(one) for one in merged]})
    else:
        shown = Console()
        for one in merged:
            shown.print(console.result_table(console.in_cli_words(one.result)))
            for line in _said(one):
                shown.print(console.plain(line), highlight=False)
    if any(one.missing for one in merged):
        raise typer.Exit(4)


def _said(one: Merged) -> list[str]:
    plan = one.result.plan
    said = [f"run {one.key}: {one.added} shards added, {len(plan) - len(one.missing)} of {len(plan)} are there"]
    if one.missing:
        said.append(f"missing: shards {_listed(one.missing)}, {one.result.missing} examples")
    if one.twice:
        said.append(f"there twice, with the same outcomes, and counted once: shards {_listed(one.twice)}")
    return [*said, *one.notes]


def _listed(shards: tuple[int, ...]) -> str:
    more = f" and {len(shards) - _LISTED} more" if len(shards) > _LISTED else ""
    return ", ".join(map(str, shards[:_LISTED])) + more


def _to_json(one: Merged) -> dict[str, Any]:
    missing, twice = list(one.missing), list(one.twice)
    return one.result.to_json() | {
        "run": one.key,
        "added": one.added,
        "missing_shards": missing,
        "shards_twice": twice,
        "merge_notes": list(one.notes),
    }
