"""The curve of one run against separate runs of `full` at several radii, in robust accuracy and in cost.

    python benchmarks/curves.py measure --shared ../shared [--store FOLDER]
    python benchmarks/curves.py minimal --shared ../shared
    python benchmarks/curves.py table

`measure` runs what is missing (the run store keeps what is done); `minimal` compares the median smallest L2
perturbation with foolbox's DDN at the same number of gradients. Both write to docs/data/curves.json; `table` writes the
tables of docs/curves.md from it. Cost is forwards + 2 × backwards.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

import tmifpe

DOCS = Path(__file__).resolve().parent.parent / "docs"
KEPT, PAGE = DOCS / "data" / "curves.json", DOCS / "curves.md"
IMAGES, FEWER = 1000, 300
LINES = {"linf": (0.4, (0.1, 0.2, 0.3)), "l2": (3.0, (1.0, 1.5, 2.0))}
"""By norm: the largest radius, and three at which `full` runs by itself. `paper` runs at the last of them."""


def _fast(shared: str, limit: int) -> tuple[Any, Any]:
    model = tmifpe.load_model("mnist-fast", weights=f"{shared}/models/mnist_fast_at.pth")
    return model, tmifpe.load_data(f"mnist:{shared}/data/mnist", limit=limit)


def _cost(result: tmifpe.Result) -> int:
    return result.tally.forwards + 2 * result.tally.backwards


def measure(shared: str, store: str) -> dict[str, Any]:
    model, data = _fast(shared, IMAGES)
    rows = {}
    for norm, (to, radii) in LINES.items():
        line = tmifpe.curve(model, data, tmifpe.Threat(norm, to), at=radii, store=store, checks=False)
        alone = {}
        for eps in radii:
            alone[eps] = tmifpe.evaluate(model, data, tmifpe.Threat(norm, eps), store=store, checks=False)
        paper = tmifpe.evaluate(model, data, tmifpe.Threat(norm, radii[-1]), "paper", store=store, checks=False)
        rows[norm] = {
            "to": to,
            "curve": {one.eps: one.robust_accuracy for one in line.stated},
            "full": {eps: result.robust_accuracy for eps, result in alone.items()},
            "median": line.median,
            "area": line.area,
            "steps_per_example": line.steps,
            "cost": _cost(line.result),
            "cost_of_paper": _cost(paper),
            "ratio": _cost(line.result) / _cost(paper),
        }
        print(norm, rows[norm], file=sys.stderr, flush=True)
    return rows


def minimal(shared: str) -> dict[str, Any]:
    """On the images that are classified correctly, since an image that is not has a smallest perturbation of 0."""
    from foolbox import PyTorchModel
    from foolbox.attacks import DDNAttack

    model, data = _fast(shared, FEWER)
    x, y = data.fetch(range(FEWER))
    network = model.module.eval()
    right = network(x).argmax(dim=1) == y
    x, y = x[right], y[right]
    rows = {}
    for steps in (100, 300):
        theirs = DDNAttack(steps=steps).run(PyTorchModel(network, bounds=(0, 1), device="cpu"), x, y)
        held = network(theirs).argmax(dim=1) != y
        sizes = torch.where(held, (theirs - x).flatten(1).norm(dim=1), torch.inf)
        ours = {smooth: tmifpe.minimal(model, x, y, "l2", steps=steps, smooth=smooth) for smooth in (3.0, 0.0)}
        rows[steps] = {
            "images": len(x),
            "foolbox ddn": float(sizes.median()),
            "minimal": ours[3.0].median,
            "minimal, true gradients": ours[0.0].median,
        }
        print(steps, rows[steps], file=sys.stderr, flush=True)
    return rows


def page(text: str, kept: dict[str, Any]) -> str:
    """docs/curves.md with the tables that the data gives."""
    rows = [
        "| norm | eps | one curve | `full` there | cost of the whole curve, in runs of `paper` |",
        "|---|---|---|---|---|",
    ]
    for norm, line in kept["measure"].items():
        for eps, robust in line["curve"].items():
            alone = 100 * line["full"][eps]
            rows.append(f"| {norm} | {eps} | {100 * robust:.1f} | {alone:.1f} | {line['ratio']:.1f} |")
    text = _between(text, "measured", rows)
    rows = ["| gradients | DDN of foolbox | `minimal` | `minimal` with true gradients |", "|---|---|---|---|"]
    for steps, line in kept["minimal"].items():
        values = (line[name] for name in ("foolbox ddn", "minimal", "minimal, true gradients"))
        rows.append(f"| {steps} | {' | '.join(f'{value:.3f}' for value in values)} |")
    return _between(text, "minimal", rows)


def _between(text: str, name: str, rows: list[str]) -> str:
    inside = "\n".join(["", "", *rows, "", ""])
    return re.sub(
        rf"(<!-- {name} -->).*?(<!-- end -->)", lambda found: found[1] + inside + found[2], text, flags=re.DOTALL
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "minimal", "table"])
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--store", default="curves-store")
    asked = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if asked.what == "table":
        PAGE.write_text(page(PAGE.read_text(), kept))
        return
    found = minimal(asked.shared) if asked.what == "minimal" else measure(asked.shared, asked.store)
    KEPT.write_text(json.dumps(kept | {asked.what: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
