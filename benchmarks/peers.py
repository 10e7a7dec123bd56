"""tmifpe and its peers on the same models and images: time to the verdict, robust accuracy, memory.

    make bench [QUICK=1]        # installs the peers in .venv-bench and runs both verbs below
    python benchmarks/peers.py measure --shared ../shared [--quick] [--models fast,r4b] [--only ours,foolbox]
    python benchmarks/peers.py growth --shared ../shared
    python benchmarks/peers.py page

Every contestant is a process of its own (this file as `python peers.py worker`), which loads the model once and then
waits for its turn: they take turns, round after round, and the best time of each counts. All attack with 100 steps at
Linf, in batches of 256 at most, on all threads that torch takes. What they return is judged here by the untouched
model. `page` writes docs/benchmarks.md from docs/data/benchmarks.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import strength

import tmifpe
from tmifpe.core.process import keep_freed_memory
from tmifpe.core.torchvision_repair import heal_torchvision

KEPT = strength.DATA / "benchmarks.json"
PAGE = strength.ROOT / "docs" / "benchmarks.md"
FIGURE = strength.ROOT / "docs" / "benchmarks.png"
STEPS, BATCH = 100, 256
QUICK_IMAGES = {"fast": 256, "trades": 64, "r4b": 256, "r18": 32, "imagenet": 4}


@dataclass(frozen=True)
class Case:
    """A model with its images and radius; `line` names it in strength.py."""

    title: str
    images: int
    eps: float
    line: str | None = None


CASES = {
    "fast": Case("MNIST Fast AT", 512, 0.3, "fast"),
    "trades": Case("MNIST TRADES SmallCNN", 128, 0.3, "trades"),
    "r4b": Case("CIFAR-10 resnet4b", 512, 2 / 255, "r4b"),
    "r18": Case("CIFAR-10 ResNet-18", 32, 1 / 255, "r18"),
    "imagenet": Case("ResNet-18, 224x224, 1000 classes, random weights", 8, 1 / 255),
}


def load(key: str, images: int, shared: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """The model in eval mode, images, labels."""
    case = CASES[key]
    if case.line is None:
        heal_torchvision()
        import timm

        torch.manual_seed(0)
        network = timm.create_model("resnet18").eval()
        x = torch.rand(images, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return network, x, network(x).argmax(dim=1)
    model, data = strength.load(replace(strength.LINES[case.line], limit=images), shared)
    x, y = data.fetch(range(images))
    return model.module.eval(), x, y


@dataclass(frozen=True)
class Task:
    """What every contestant is given."""

    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(BATCH), self.y.split(BATCH), strict=True))

    def robust(self, adv: Tensor) -> float:
        with torch.no_grad():
            found = [self.model(part).argmax(dim=1) for part in adv.split(BATCH)]
        inside = (adv - self.x).abs().flatten(1).amax(dim=1) <= self.eps * (1 + 1e-4) + 1e-6
        return 1 - float(((torch.cat(found) != self.y) & inside).double().mean())


def bare(task: Task) -> float:
    """Forward and backward passes of as many example-steps, and nothing else."""
    for _ in range(STEPS):
        for x, _ in task.batches():
            leaf = x.detach().requires_grad_()
            torch.autograd.grad(task.model(leaf).sum(), leaf)
    return math.nan


def ours(tune: str, attack: str) -> Callable[[Task], float]:
    def run(task: Task) -> float:
        threat = tmifpe.Threat("linf", task.eps)
        found = tmifpe.evaluate(task.model, (task.x, task.y), threat, attack, checks=False, tune=tune)
        return found.robust_accuracy

    return run


def foolbox(task: Task) -> float:
    import foolbox as fb

    model = fb.PyTorchModel(task.model, bounds=(0, 1))
    attack = fb.attacks.LinfPGD(steps=STEPS)
    return task.robust(torch.cat([attack(model, x, y, epsilons=task.eps)[1] for x, y in task.batches()]))


def torchattacks(task: Task) -> float:
    import torchattacks as ta

    attack = ta.PGD(task.model, eps=task.eps, alpha=task.eps / 4, steps=STEPS)
    return task.robust(torch.cat([attack(x, y) for x, y in task.batches()]))


def art(task: Task) -> float:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = task.model(task.x[:1]).shape[1]
    shape = tuple(task.x.shape[1:])
    estimator = PyTorchClassifier(task.model, nn.CrossEntropyLoss(), shape, classes, clip_values=(0.0, 1.0))
    attack = ProjectedGradientDescentPyTorch(
        estimator, norm="inf", eps=task.eps, eps_step=task.eps / 4, max_iter=STEPS, num_random_init=1,
        batch_size=BATCH, verbose=False,
    )  # fmt: skip
    return task.robust(torch.from_numpy(attack.generate(task.x.numpy(), task.y.numpy())))


def apgd(task: Task) -> float:
    from pyautoattack import AutoAttack

    attack = AutoAttack(task.model, norm="Linf", eps=task.eps, version="custom", attacks=["apgd-ce"])
    attack.apgd.n_restarts = 1  # of five: 100 steps, as everyone
    return task.robust(attack.run_standard_evaluation(task.x, task.y, batch_size=BATCH)[0])


PEERS: dict[str, Callable[[Task], float]] = {
    "foolbox": foolbox,
    "torchattacks": torchattacks,
    "art": art,
    "pyautoattack": apgd,
}
OURS: dict[str, Callable[[Task], float]] = {
    "ours": ours("auto", "paper"),
    "ours-untuned": ours("off", "paper"),
    "ours-full": ours("auto", "full"),
}
CONTESTANTS = {"bare": bare, **OURS, **PEERS}
TITLES = {
    "bare": "bare passes",
    "ours": "tmifpe, `paper`",
    "ours-untuned": "tmifpe, `paper`, `--tune off`",
    "ours-full": "tmifpe, `full`",
    "foolbox": "foolbox LinfPGD",
    "torchattacks": "torchattacks PGD",
    "art": "ART PGD",
    "pyautoattack": "pyautoattack APGD-CE",
}


def worker(options: argparse.Namespace) -> None:
    """Load, say so, and then attack once for every line that comes in."""
    warnings.simplefilter("ignore")
    keep_freed_memory()
    heal_torchvision()
    model, x, y = load(options.model, options.images, Path(options.shared))
    task, run = Task(model, x, y, CASES[options.model].eps), CONTESTANTS[options.contestant]
    tell, sys.stdout = sys.stdout, sys.stderr  # peers print
    small = Task(model, x[:4], y[:4], task.eps)
    try:
        if options.contestant != "bare":
            run(small)  # imports, and whatever a first call prepares
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=tell, flush=True)
        return
    print(json.dumps({"ready": True}), file=tell, flush=True)
    for _ in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        robust = run(task)
        told = {"seconds": time.perf_counter() - began, "robust": None if math.isnan(robust) else robust}
        told["cpu_seconds"] = time.process_time() - used  # a neighbour on the machine adds little to these
        told["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(told), file=tell, flush=True)


def measure(options: argparse.Namespace) -> None:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for key in options.models.split(",") if options.models else CASES:
        images = QUICK_IMAGES[key] if options.quick else CASES[key].images
        names = options.only.split(",") if options.only else list(CONTESTANTS)
        running: dict[str, subprocess.Popen[str]] = {}
        found: dict[str, list[dict[str, Any]]] = {}
        for name in names:  # one after the other, since they would be in each other's way
            process = _start(name, key, images, options.shared)
            if "missing" in (told := _listen(process)):
                print(key, name, "is left out:", told["missing"], flush=True)
            else:
                running[name] = process
        for turn in range(options.rounds):
            for name, process in running.items():
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                told = _listen(process)
                found.setdefault(name, []).append(told)
                print(key, images, f"round {turn + 1}", name, json.dumps(told), flush=True)
        for process in running.values():
            process.communicate()
        kept.setdefault("peers", {})[key] = {"images": images, "runs": found}
        kept["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def _start(name: str, key: str, images: int, shared: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "worker", "--contestant", name, "--model", key]
    words += ["--images", str(images), "--shared", shared]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _listen(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line else {"missing": f"the process ended with code {process.wait()}"}


def growth(options: argparse.Namespace) -> None:
    """CPU seconds against examples, steps and classes, and the exponents of the fits."""
    torch.set_num_threads(1)
    keep_freed_memory()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    shared = Path(options.shared).resolve()
    line = strength.LINES["wk"]
    model, _ = strength.load(line, shared)

    def seconds(network: Any, data: Any, steps: int, **more: Any) -> float:
        attack = tmifpe.PGD(steps=steps)
        began = time.process_time()
        tmifpe.evaluate(network, data, tmifpe.Threat("linf", line.eps), attack, checks=False, tune="off", **more)
        return time.process_time() - began

    def source(count: int) -> Any:
        return tmifpe.load_data(f"mnist:{shared / 'data' / 'mnist'}", limit=count)

    def headed(classes: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        # As wide as the networks people have for a thousand classes.
        layers = (nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, classes))
        network, (x, _) = nn.Sequential(*layers).eval(), source(256).fetch(range(256))
        with torch.no_grad():
            return network, (x, network(x).argmax(dim=1))  # its own labels, so that all examples are attacked

    seconds(model, source(100), 10)  # whatever a first call prepares
    table: dict[str, dict[int, float]] = {"examples": {}, "steps": {}, "classes": {}}
    for _ in range(options.rounds):
        for size in (100, 300, 1000, 3000, 10000):
            _best(table["examples"], size, seconds(model, source(size), 30))
        for size in (10, 30, 100, 300, 1000):
            _best(table["steps"], size, seconds(model, source(256), size))
        for size in (10, 30, 100, 300, 1000):
            network, data = headed(size)
            _best(table["classes"], size, seconds(network, data, 20, mode="strongest"))
    memory = {}
    for size in (1000, 10000):
        code = f"import peers,resource,sys; peers.used({size}, {str(shared)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
        memory[size] = float(done.stdout.split()[-1])
    kept["growth"] = {"seconds": table, "exponents": {n: exponent(v) for n, v in table.items()}, "peak_mb": memory}
    print(json.dumps(kept["growth"], indent=1))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def used(size: int, shared: str) -> None:
    """Prints the peak memory of a run of so many examples."""
    torch.set_num_threads(1)
    model, _ = strength.load(strength.LINES["wk"], Path(shared))
    data = tmifpe.load_data(f"mnist:{shared}/data/mnist", limit=size)
    tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.1), tmifpe.PGD(steps=2), checks=False, tune="off")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _best(times: dict[int, float], size: int, seconds: float) -> None:
    times[size] = min(times.get(size, math.inf), seconds)


def exponent(times: dict[int, float]) -> float:
    """The slope of log(seconds) over log(size), by least squares."""
    points = [(math.log(int(size)), math.log(seconds)) for size, seconds in times.items()]
    mean = [sum(values) / len(points) for values in zip(*points, strict=True)]
    up = sum((x - mean[0]) * (y - mean[1]) for x, y in points)
    return up / sum((x - mean[0]) ** 2 for x, _ in points)


def page() -> None:
    """The tables of docs/benchmarks.md, and its figure."""
    kept = json.loads(KEPT.read_text())
    made = {"peers": _peers(kept["peers"]), "machine": kept["machine"] + "."}
    if "growth" in kept:
        made["growth"] = _growth(kept["growth"])
    text = PAGE.read_text()
    for name, table in made.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(marked, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    PAGE.write_text(text)
    _draw(kept["peers"])


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    fastest = min(runs, key=lambda run: run["seconds"])
    return fastest | {"peak_mb": max(run["peak_mb"] for run in runs)}


def _peers(found: dict[str, Any]) -> str:
    lines = [
        "| model | images | contestant | time to the verdict | example-steps/s | of bare | robust % | peak MB |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for key, case in found.items():
        bests = {name: best(runs) for name, runs in case["runs"].items()}
        for name, run in bests.items():
            robust = "" if run["robust"] is None else f"{100 * run['robust']:.1f}"
            rate = f"{case['images'] * STEPS / run['seconds']:,.0f}"
            share = f"{run['seconds'] / bests['bare']['seconds']:.2f}" if "bare" in bests else ""
            cells = (
                CASES[key].title,
                str(case["images"]),
                TITLES[name],
                f"{run['seconds']:.1f} s",
                rate,
                share,
                robust,
            )
            lines.append("| " + " | ".join((*cells, f"{run['peak_mb']:.0f}")) + " |")
        rivals = {name: bests[name]["seconds"] for name in PEERS if name in bests}
        if rivals and "ours" in bests:
            winner = min(rivals, key=lambda name: rivals[name])
            ratio = rivals[winner] / bests["ours"]["seconds"]
            lines.append(f"| | | **{ratio:.2f} times as fast as {TITLES[winner]}** | | | | | |")
    return "\n".join(lines)


def _growth(found: dict[str, Any]) -> str:
    lines = ["| what grows | CPU seconds | exponent |", "|---|---|---:|"]
    for name, times in found["seconds"].items():
        told = ", ".join(f"{size}: {seconds:.2f}" for size, seconds in times.items())
        lines.append(f"| {name} | {told} | {found['exponents'][name]:.2f} |")
    memory = ", ".join(f"{int(size):,} examples {used:.0f} MB" for size, used in found["peak_mb"].items())
    return "\n".join(lines) + f"\n\nPeak memory: {memory}."


def _draw(found: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(found), figsize=(max(6.5, 3.1 * len(found)), 3.4), squeeze=False, layout="constrained"
    )
    measured = [
        name for name in TITLES if name != "ours-untuned" and any(name in case["runs"] for case in found.values())
    ]
    names = measured[::-1]
    colours = ["#0072B2" if name in OURS else "#999999" if name == "bare" else "#E69F00" for name in names]
    for place, (axis, (key, case)) in enumerate(zip(axes[0], found.items(), strict=True)):
        bests = {name: best(runs)["seconds"] for name, runs in case["runs"].items()}
        # Who was not measured on a model leaves a gap there, so that a line is the same contestant everywhere.
        shares = [bests.get(name, math.nan) / bests["bare"] for name in names]
        bars = axis.barh([TITLES[name].replace("`", "") for name in names], shares, color=colours)
        axis.bar_label(bars, ["" if math.isnan(share) else f"{share:.2f}" for share in shares], padding=2, fontsize=8)
        axis.set_title(CASES[key].title.replace(", 224x224", "\n224x224"), fontsize=9)
        axis.set_xlim(0, 1.25 * max(share for share in shares if not math.isnan(share)))
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.tick_params(labelsize=8)
        if place:
            axis.set_yticklabels([])
    figure.supxlabel("time to the verdict, of bare forward and backward passes", fontsize=9)
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    shared = str(strength.ROOT.parent / "shared")
    measuring = verbs.add_parser("measure", help="let them take turns")
    measuring.add_argument("--quick", action="store_true", help="fewer images")
    measuring.add_argument("--models", default="", help=f"some of {','.join(CASES)}")
    measuring.add_argument("--only", default="", help=f"some of {','.join(CONTESTANTS)}")
    growing = verbs.add_parser("growth", help="cost against examples, steps and classes")
    for verb in (measuring, growing):
        verb.add_argument("--shared", default=shared)
        verb.add_argument("--rounds", type=int, default=3)
    working = verbs.add_parser("worker")
    working.add_argument("--contestant", choices=CONTESTANTS, required=True)
    working.add_argument("--model", choices=CASES, required=True)
    working.add_argument("--images", type=int, required=True)
    working.add_argument("--shared", default=shared)
    verbs.add_parser("page", help="write docs/benchmarks.md and its figure")
    options = parser.parse_args()
    {"measure": measure, "growth": growth, "worker": worker, "page": lambda _: page()}[options.verb](options)


if __name__ == "__main__":
    main()
