"""Which loss comes nearer to the boundary, on the examples that neither of two losses broke.

    python benchmarks/nearer.py --model resnet18 --norm linf --n 128 [--reference ce] [--store tmifpe-runs]

Robust accuracies of a few images can hardly differ by more than chance. The best margin that each attack reached on the
images that survived says more, and the run store has it for every example: nothing is computed again. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
from scipy.stats import wilcoxon

from tmifpe.core.options import parse
from tmifpe.store import Store


def pair(reference, other) -> dict:
    """`other` against `reference`, outcomes of the same examples: verdicts, and margins where both failed."""
    robust = reference.robust & other.robust
    gain = (other.margin - reference.margin)[robust]
    return {
        "robust": int(other.robust.sum()),
        "only_reference": int((reference.fooled & ~other.fooled).sum()),
        "only_this": int((other.fooled & ~reference.fooled).sum()),
        "survivors": len(gain),
        "nearer": int((gain > 0).sum()),
        "farther": int((gain < 0).sum()),
        "median_gain": float(np.median(gain)),
        "p": float(wilcoxon(gain).pvalue) if gain.any() else 1.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="tmifpe-runs")
    parser.add_argument("--model", required=True, help="a part of the model's name")
    parser.add_argument("--norm", required=True)
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--reference", default="ce")
    options = parser.parse_args()
    store = Store(options.store)
    found: dict[str, dict[int, object]] = {}
    for run in store.runs():
        spec = run.spec
        wanted = options.model in spec.model and spec.threat.norm == options.norm and spec.n == options.n
        if wanted and spec.targets == "none" and run.result is not None and len(spec.attacks) == 1:
            name, settings = parse(spec.attacks[0])
            seeds = found.setdefault(str(settings.get("loss", name)), {})
            if spec.seed in seeds:
                parser.error(f"more than one run of {name} at seed {spec.seed} fits")
            seeds[spec.seed] = store.result(run).outcomes
    if options.reference not in found:
        parser.error(f"{options.store} has no finished run of {options.reference} that fits")
    base = found.pop(options.reference)
    rows = {
        name: {seed: pair(base[seed], outcomes) for seed, outcomes in sorted(seeds.items()) if seed in base}
        for name, seeds in found.items()
    }
    words = ["--model", options.model, "--norm", options.norm, "--n", str(options.n), "--reference", options.reference]
    command = " ".join(["python benchmarks/nearer.py", *words])
    json.dump({"command": command, "reference": options.reference, "rows": rows}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
