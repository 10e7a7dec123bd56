"""`full` against AutoAttack on every real model, in robust accuracy and in cost.

    python benchmarks/strength.py measure --shared ../shared [--lines fast,kw] [--attacks full]
    python benchmarks/strength.py table

`measure` runs what is missing (the run store keeps what is done) and writes docs/data/strength-ours.json; `table`
writes the tables of docs/strength.md and README.md from it and from AutoAttack's own runs in docs/data. Cost is
forwards + 2 × backwards.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tmifpe
from tmifpe.attacks.catalogue import stage_title

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data"
OURS = DATA / "strength-ours.json"
PAGE, README = ROOT / "docs" / "strength.md", ROOT / "README.md"
NORMALISE: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2471, 0.2435, 0.2616)}
ATTACKS = {"paper": "paper", "quick": "quick", "full": "full"}


@dataclass(frozen=True)
class Line:
    """One row of the table: a model, its images, a threat, and where AutoAttack's run is."""

    title: str
    model: str
    weights: str | None
    data: str
    limit: int
    norm: str
    eps: float
    autoattack: str | None = None
    """A file of docs/data; None where the truth is known instead."""
    truth: int | None = None
    """Robust images by a complete verifier (shared/models/README.md)."""


def _mnist(title: str, model: str, weights: str, limit: int, norm: str, eps: float, file: str | None, **more) -> Line:
    return Line(title, model, weights, "mnist", limit, norm, eps, file, **more)


def _cifar(name: str, norm: str, eps: float, file: str) -> Line:
    return Line(f"CIFAR-10 {name}", f"cifar10_{name}.onnx", None, "cifar10", 846, norm, eps, file)


_FAST = "table1-mnist-fast-autoattack"
LINES = {
    "fast": _mnist("MNIST Fast AT", "mnist-fast", "mnist_fast_at.pth", 1000, "linf", 0.3, _FAST),
    "fast-l2": _mnist("MNIST Fast AT", "mnist-fast", "mnist_fast_at.pth", 1000, "l2", 2.0, "l2-mnist-fast"),
    "kw": Line(
        "Fashion-MNIST",
        "mnist-fast",
        "fashion_mnist_kw.pth",
        "fashion-mnist",
        1000,
        "linf",
        0.1,
        "strength-fashion-kw-linf",
    ),
    "trades": _mnist(
        "MNIST TRADES", "mnist-smallcnn", "mnist_trades_smallcnn.pt", 200, "linf", 0.3, "table1-mnist-trades-autoattack"
    ),
    "trades-l2": _mnist(
        "MNIST TRADES", "mnist-smallcnn", "mnist_trades_smallcnn.pt", 200, "l2", 2.0, "l2-mnist-trades"
    ),
    "lenet": _mnist(
        "MNIST LeNet5", "mnist-lenet5", "mnist_lenet5_adv.pt", 200, "linf", 0.3, "compare-mnist-lenet5-autoattack"
    ),
    "lenet-l2": _mnist("MNIST LeNet5", "mnist-lenet5", "mnist_lenet5_adv.pt", 200, "l2", 2.0, "l2-mnist-lenet5"),
    "r2b": _cifar("resnet2b", "linf", 2 / 255, "compare-cifar10-resnet2b"),
    "r2b-8": _cifar("resnet2b", "linf", 8 / 255, "strength-cifar10-resnet2b-8"),
    "r2b-l2": _cifar("resnet2b", "l2", 0.25, "l2-cifar10-resnet2b"),
    "r4b": _cifar("resnet4b", "linf", 2 / 255, "compare-cifar10-resnet4b"),
    "r4b-8": _cifar("resnet4b", "linf", 8 / 255, "strength-cifar10-resnet4b-8"),
    "r4b-l2": _cifar("resnet4b", "l2", 0.25, "l2-cifar10-resnet4b"),
    "r18": Line(
        "CIFAR-10 ResNet-18",
        "resnet18",
        None,
        "cifar10",
        64,
        "linf",
        1 / 255,
        "compare-cifar10-resnet18-autoattack",
    ),
    "fast-l1": _mnist("MNIST Fast AT", "mnist-fast", "mnist_fast_at.pth", 200, "l1", 5.0, "l1-mnist-fast"),
    "r2b-l1": replace(_cifar("resnet2b", "l1", 1.5, "l1-cifar10-resnet2b"), limit=200),
    "wk": _mnist("MNIST wk17a", "mnist-fast", "mnist_wk17a.pth", 10000, "linf", 0.1, None, truth=9562),
}


def load(line: Line, shared: Path) -> tuple[tmifpe.Classifier, Any]:
    data = shared / "data" / line.data
    source = f"npz:{data / 'test_first_846.npz'}" if line.data == "cifar10" else f"{line.data}:{data}"
    return load_model(line, shared), tmifpe.load_data(source, limit=line.limit)


def load_model(line: Line, shared: Path) -> tmifpe.Classifier:
    models = shared / "models"
    if line.model == "resnet18":
        script = ROOT / "benchmarks" / "resnet18_cifar.py"
        found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
        return tmifpe.load_model(f"{script}:resnet18", weights=found.stdout.strip())
    if line.weights is None:
        return tmifpe.load_model(str(models / line.model), **NORMALISE)
    return tmifpe.load_model(line.model, weights=str(models / line.weights))


def measure(options: argparse.Namespace) -> None:
    found = json.loads(OURS.read_text()) if OURS.exists() else {}
    for key in options.lines.split(",") if options.lines else LINES:
        line = LINES[key]
        model, data = load(line, Path(options.shared))
        threat = tmifpe.Threat(line.norm, line.eps)
        for attack in options.attacks.split(","):
            for seed in map(int, options.seeds.split(",")):
                result = tmifpe.evaluate(
                    model, data, threat, ATTACKS[attack], seed=seed, store=options.store, checks=False
                ).to_json()
                kept = {name: result[name] for name in ("forwards", "backwards", "seconds", "n", "clean_accuracy")}
                kept["robust"] = round(result["robust_accuracy"] * result["n"])
                kept["stages"] = [stage | {"attack": stage_title(stage["attack"])} for stage in result["stages"]]
                found.setdefault(key, {}).setdefault(attack, {})[str(seed)] = kept
                print(key, attack, seed, kept["robust"], cost(kept), f"{kept['seconds']:.0f} s", flush=True)
                OURS.write_text(json.dumps(found, indent=1) + "\n")


def cost(result: dict[str, Any]) -> int:
    return result["forwards"] + 2 * result["backwards"]


def measured_before(line: Line, name: str) -> dict[str, Any]:
    """A column of the file that AutoAttack's own run is in, seed 0: robust images, cost, seconds. Or nothing."""
    told = json.loads((DATA / f"{line.autoattack}.json").read_text())
    if "rows" in told:
        row = told["rows"][0]
        column, n = row["columns"][name], row["n"]
        accuracy, seconds = column["values"][0], column["seconds"][0]
    elif name not in told["losses"]:
        return {}
    else:
        column = told["losses"][name]
        accuracy, n, seconds = column["robust_accuracy"], column["n"], column["seconds"]
    return {"robust": round(accuracy * n), "n": n, "cost": cost(column), "seconds": seconds}


def autoattack(line: Line) -> dict[str, Any]:
    return measured_before(line, "autoattack")


def first_stage(run: dict[str, Any]) -> dict[str, Any]:
    """What the first stage of `full`, the smooth PGD, left by itself, and its cost."""
    stage = run["stages"][0]
    return {"robust": stage["examples"] - stage["broken"], "cost": cost(stage)}


def threat(line: Line) -> str:
    whole = line.eps * 255
    size = f"{whole:g}/255" if line.norm == "linf" and line.data == "cifar10" else f"{line.eps:g}"
    return f"{line.norm} {size}"


def against() -> str:
    """The table against AutoAttack."""
    found = json.loads(OURS.read_text())
    head = [
        "model",
        "threat",
        "images",
        "AutoAttack",
        "`paper`",
        "first stage",
        "`full`",
        "cost of the first",
        "of `full`",
        "seconds, AutoAttack",
        "`full`",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, line in LINES.items():
        if line.autoattack is None or "full" not in found.get(key, {}):
            continue
        other, runs = autoattack(line), list(found[key]["full"].values())
        first = [first_stage(run) for run in runs]
        cells = [line.title, threat(line), str(other["n"]), str(other["robust"])]
        cells.append(str(measured_before(line, "tmifpe").get("robust", "")))
        cells += [", ".join(str(run["robust"]) for run in each) for each in (first, runs)]
        costs = [run["cost"] for run in first], [cost(run) for run in runs]
        cells += [f"{statistics.median(each) / other['cost']:.1%}" for each in costs]
        cells += [f"{other['seconds']:.0f}", ", ".join(f"{run['seconds']:.0f}" for run in runs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def seconds() -> str:
    """What the two columns of seconds are worth, by the line whose seeds differ most."""
    found, times, ratios = json.loads(OURS.read_text()), {}, []
    for key, line in LINES.items():
        if line.autoattack is None or "full" not in found.get(key, {}):
            continue
        times[key] = [run["seconds"] for run in found[key]["full"].values()]
        ratios.append(autoattack(line)["seconds"] / statistics.median(times[key]))
    widest = max(times, key=lambda key: max(times[key]) / min(times[key]))
    spent = [cost(run) for run in found[widest]["full"].values()]
    line = LINES[widest]
    return (
        "Seconds are by the wall clock, of single runs at different times on two cores that did other work as well: on "
        f"{line.title} at {threat(line)} the seeds took {min(times[widest]):.0f} to {max(times[widest]):.0f} s, for "
        f"costs that differ by {max(spent) / min(spent) - 1:.0%}. AutoAttack took {min(ratios):.1f} to "
        f"{max(ratios):.0f} times the median of `full`, {statistics.median(ratios):.0f} in the median. Compare by "
        "cost; [benchmarks](benchmarks.md) has times of the same steps, taken in turns."
    )


def headline() -> str:
    """The same in short, for README."""
    found = json.loads(OURS.read_text())
    lines = ["| model | threat | images | AutoAttack | `full` | cost |", "|---|---|---:|---:|---:|---:|"]
    for key, line in LINES.items():
        if line.autoattack is None or "full" not in found.get(key, {}):
            continue
        other, runs = autoattack(line), list(found[key]["full"].values())
        left = statistics.median(run["robust"] for run in runs)
        share = statistics.median(cost(run) for run in runs) / other["cost"]
        lines.append(f"| {line.title} | {threat(line)} | {other['n']} | {other['robust']} | {left:g} | {share:.1%} |")
    return "\n".join(lines)


def stages() -> str:
    """What each stage of `full` attacked, broke and cost, at seed 0."""
    found = json.loads(OURS.read_text())
    names = [stage_title(tmifpe.attacks.attack_spelling(stage)) for stage in tmifpe.get_attack("full").stages]
    head = ["model", "threat", *names]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, line in LINES.items():
        run = found.get(key, {}).get("full", {}).get("0")
        if run is None:
            continue
        cells = [f"{s['broken']} of {s['examples']} ({cost(s) / 1000:.1f}k)" for s in run["stages"]]
        cells += [""] * (len(names) - len(cells))
        lines.append("| " + " | ".join([line.title, threat(line), *cells]) + " |")
    return "\n".join(lines)


def truth() -> str:
    """What is left where the truth is known, in one sentence per model."""
    found, told = json.loads(OURS.read_text()), []
    for key, line in LINES.items():
        runs = list(found.get(key, {}).get("full", {}).values())
        if line.truth is None or not runs:
            continue
        first = [first_stage(run) for run in runs]
        left = [", ".join(str(run["robust"]) for run in each) for each in (runs, first)]
        more = statistics.median(cost(run) for run in runs) / statistics.median(run["cost"] for run in first) - 1
        told.append(
            f"{line.title}, {threat(line)}: of {line.limit} images {line.truth} are robust. `full` leaves {left[0]} "
            f"(by seed), its first stage alone {left[1]}; the other stages cost {more:.1%} more."
        )
    return "\n".join(told)


def table() -> None:
    made = {
        PAGE: {"against": against(), "seconds": seconds(), "stages": stages(), "truth": truth()},
        README: {"headline": headline()},
    }
    for path, tables in made.items():
        page = path.read_text()
        for name, text in tables.items():
            marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            page = re.sub(marked, lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
        path.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure", help="run what is missing")
    measuring.add_argument("--shared", default=str(ROOT.parent / "shared"))
    measuring.add_argument("--store", default="tmifpe-runs")
    measuring.add_argument("--lines", default="", help=f"some of {','.join(LINES)}")
    measuring.add_argument("--attacks", default="full", help=f"some of {','.join(ATTACKS)}")
    measuring.add_argument("--seeds", default="0,1,2")
    verbs.add_parser("table", help="write the tables of docs/strength.md")
    options = parser.parse_args()
    if options.verb == "measure":
        measure(options)
    else:
        table()


if __name__ == "__main__":
    main()
