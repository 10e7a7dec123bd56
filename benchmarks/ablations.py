"""What each part of `full` is worth: robust images without it, on some lines of benchmarks/strength.py.

    python benchmarks/ablations.py measure --shared ../shared [--lines fast,lenet]
    python benchmarks/ablations.py table

`measure` runs what is missing and writes docs/data/strength-ablations.json; `table` writes the table of
docs/strength.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import strength

import tmifpe
from tmifpe.attacks import Sequence, as_attack, attack_spelling, full, get_attack
from tmifpe.attacks.attack import Attack
from tmifpe.attacks.near import Near

KEPT = strength.DATA / "strength-ablations.json"
LINES = {"fast": 300, "fast-l2": 300, "trades-l2": 200, "lenet": 200, "r2b-8": 300, "r2b-l1": 200}
"""The lines of strength.py, and how many of their first images."""


def changed(attack: Attack, **options: Any) -> Attack:
    """With these options in every stage that has them."""

    def one(stage: Attack) -> Attack:
        if isinstance(stage, Near):
            return replace(stage, attack=one(stage.inner))
        return replace(stage, **{name: value for name, value in options.items() if hasattr(stage, name)})

    return as_attack(one(stage) for stage in attack.stages)


def variants(norm: str | None = None) -> Iterator[tuple[str, Attack]]:
    """All, or those that differ under this norm."""
    whole = full()
    yield "full", whole
    yield "no smoothing", changed(whole, smooth=0.0)
    for loss in ("mifpe", "ce", "dlr"):
        yield f"{loss} instead of T-MIFPE", changed(whole, loss=loss)
    for number, stage in enumerate(whole.stages):
        if norm is not None and getattr(stage, "norm", None) not in (None, norm):
            continue
        rest = whole.stages[:number] + whole.stages[number + 1 :]
        yield f"without stage {number + 1}, {stage.title}", Sequence(rest)


def measure(options: argparse.Namespace) -> None:
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for key in options.lines.split(",") if options.lines else LINES:
        line = replace(strength.LINES[key], limit=LINES[key])
        model, data = strength.load(line, Path(options.shared))
        threat = tmifpe.Threat(line.norm, line.eps)
        for name, attack in variants(line.norm):
            spelled = attack_spelling(attack)
            kept = found.setdefault(key, {}).get(name)
            if kept is not None and kept["attack"] == spelled:
                continue
            told = tmifpe.evaluate(model, data, threat, get_attack(spelled), checks=False).to_json()
            robust = round(told["robust_accuracy"] * told["n"])
            found[key][name] = {"attack": spelled, "robust": robust, "n": told["n"], "cost": strength.cost(told)}
            print(key, name, robust, strength.cost(told), flush=True)
            KEPT.write_text(json.dumps(found, indent=1) + "\n")


def table() -> str:
    """Robust images; in brackets the cost as a share of that of `full`."""
    found = json.loads(KEPT.read_text())
    lines = {key: strength.LINES[key] for key in LINES if key in found}
    heads = [f"{line.title} {strength.threat(line)} ({found[key]['full']['n']})" for key, line in lines.items()]
    rows = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name, _ in variants():
        cells = [f"`{name}`" if name == "full" else name]
        for key in lines:
            run, whole = found[key].get(name), found[key]["full"]
            cells.append("" if run is None else f"{run['robust']} ({run['cost'] / whole['cost']:.2f})")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure", help="run what is missing")
    measuring.add_argument("--shared", default=str(strength.ROOT.parent / "shared"))
    measuring.add_argument("--lines", default="", help=f"some of {','.join(LINES)}")
    verbs.add_parser("table", help="write the table of docs/strength.md")
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options)
    else:
        marked = r"(<!-- ablations -->\n).*?(<!-- end -->)"
        page = re.sub(marked, rf"\g<1>{table()}\n\g<2>", strength.PAGE.read_text(), flags=re.DOTALL)
        strength.PAGE.write_text(page)


if __name__ == "__main__":
    main()
