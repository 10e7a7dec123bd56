"""Twenty-nine defences that mask or lie (tests/defences.py), around a robust and an undefended network of digits:
what `full` printed before and after its repairs, and the best that other ways find.

    python benchmarks/defences.py [--only NAME] [--images 30]
    python benchmarks/defences.py table

Results go to docs/data/defences.json, one defence at a time; what is there is kept. Other ways: examples made for the
bare network (transfer), attacks led by its gradient and judged by the defended one (what an adaptive attacker does:
BPDA), and Square with 5000 queries.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.defences import DEFENCES

import tmifpe

FILE = Path(__file__).resolve().parent.parent / "docs" / "data" / "defences.json"
NETWORKS = {"digits-robust": 0.15, "digits-distilled": 0.1}
SLACK = 0.05


def measured(which: str, name: str, images: int) -> dict[str, Any]:
    bare = tmifpe.load_model(which).module
    threat, data = tmifpe.Threat("linf", NETWORKS[which]), tmifpe.load_data("digits", limit=images)
    defended = DEFENCES[name](copy.deepcopy(bare)).eval()
    began = time.perf_counter()
    run = tmifpe.evaluate(defended, data, threat)
    spent = time.perf_counter() - began
    x, labels = data.fetch(range(len(data)))
    adv = tmifpe.PGD(steps=100, smooth=3.0)(bare, x, labels, threat)
    given = tmifpe.evaluate(defended, data, threat, tmifpe.PGD(steps=1), checks=False, transfer_adv=adv).transferred
    led = tmifpe.evaluate(defended, data, threat, checks=False, from_model=bare).from_model
    square = tmifpe.evaluate(defended, data, threat, "square", checks=False)
    assert given is not None
    assert led is not None
    return {
        "clean": run.clean_accuracy,
        "attack": run.robust_accuracy + sum(one.broken for one in run.repairs) / run.n,
        "printed": run.robust_accuracy,
        "transfer": given.robust_accuracy,
        "led": led.robust_accuracy,
        "square": square.robust_accuracy,
        "flags": [flag.name for flag in run.flags],
        "repairs": [{"name": one.name, "examples": one.examples, "broken": one.broken} for one in run.repairs],
        "forwards": run.tally.forwards,
        "backwards": run.tally.backwards,
        "check_forwards": run.check_forwards,
        "check_backwards": run.check_backwards,
        "repair_forwards": sum(one.forwards for one in run.repairs),
        "repair_backwards": sum(one.backwards for one in run.repairs),
        "seconds": spent,
        "images": images,
    }


def best(row: dict[str, Any]) -> float:
    return min(row["transfer"], row["led"], row["square"])


def verdict(row: dict[str, Any]) -> str:
    """`repaired` where the printed number is at most five points above the best of the other ways."""
    if row["printed"] <= best(row) + SLACK + 1e-9:
        return "right without repairs" if row["attack"] <= best(row) + SLACK + 1e-9 else "repaired"
    return "flagged" if row["flags"] else "SILENT"


def table(found: dict[str, Any]) -> str:
    lines = []
    for which, eps in NETWORKS.items():
        lines += [
            f"`{which}`, Linf {eps:g}:",
            "",
            "| defence | clean | attack alone | **printed** | transfer | led (BPDA) | Square | | flags | repaired by |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name in DEFENCES:
            row = found.get(f"{which}: {name}")
            if row is None:
                continue
            cells = [f"{100 * row[key]:.0f}" for key in ("clean", "attack", "printed", "transfer", "led", "square")]
            cells[2] = f"**{cells[2]}**"
            by = ", ".join(f"{one['name']} {one['broken']}" for one in row["repairs"] if one["broken"])
            lines.append(f"| {name} | {' | '.join(cells)} | {verdict(row)} | {', '.join(row['flags'])} | {by} |")
        lines.append("")
    verdicts = [verdict(row) for row in found.values()]
    lines.append(", ".join(f"{one}: {verdicts.count(one)}" for one in dict.fromkeys(verdicts)))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", nargs="?", default="run")
    parser.add_argument("--only")
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--network", choices=NETWORKS)
    given = parser.parse_args()
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if given.verb == "table":
        print(table(found))
        return
    torch.set_num_threads(1)
    for name in DEFENCES:
        for which in [given.network] if given.network else NETWORKS:
            key = f"{which}: {name}"
            if key not in found and given.only in (None, name):
                found[key] = measured(which, name, given.images)
                FILE.write_text(json.dumps(found, indent=1) + "\n")
                row = found[key]
                print(
                    key, f"{row['attack']:.2f} -> {row['printed']:.2f}, best {best(row):.2f}", verdict(row), flush=True
                )


if __name__ == "__main__":
    DEFENCES = {"none": lambda network: network, **DEFENCES}
    main()
