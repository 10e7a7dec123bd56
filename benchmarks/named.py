"""Attacks under their published names against the originals, at equal budgets.

    pip install --no-deps --target PEERS adv-lib torchattacks       # pyautoattack is in requirements-dev.txt
    python benchmarks/named.py measure --peers PEERS [--settings mnist-fast] [--attacks square] [--most 2000]
    python benchmarks/named.py page

`measure` runs what is missing and writes docs/data/named.json; `page` writes the tables of docs/named.md. Attacks at
eps: how many of the first `IMAGES` images that are classified correctly survive. Attacks without one: the median size
of what they find. Six seeds each, or one of those that draw nothing. Networks are those of zoo.py.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zoo
from torch import Tensor, nn

import tmifpe
from tmifpe.attacks import APGD, FAB, Square
from tmifpe.attacks.radius.outside import Outside
from tmifpe.core.torchvision_repair import heal_torchvision

ROOT = Path(__file__).resolve().parent.parent
KEPT, PAGE = ROOT / "docs" / "data" / "named.json", ROOT / "docs" / "named.md"
IMAGES, SEEDS = 50, 6
ORDER = {"linf": float("inf"), "l2": 2, "l1": 1}
THEIRS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


SETTINGS: dict[str, dict[str, float]] = {
    "mnist-fast": {"linf": 0.3, "l2": 1.35, "l1": 8.0},
    "mnist-fc6x256-squared": {"linf": 0.05, "l2": 0.65, "l1": 4.0},
    "mnist-conv-l1": {"linf": 0.12, "l2": 1.6, "l1": 8.5},
    "cifar10-resnet2b": {"linf": 2 / 255, "l2": 0.2, "l1": 4.0},
    "cifar10-kw-l2": {"linf": 0.0137, "l2": 0.25, "l1": 4.0},
    "mnist-9x200": {"linf": 0.05, "l2": 0.65, "l1": 4.0},
    "mnist-lenet5": {"linf": 0.3, "l2": 1.35, "l1": 6.0},
    "cifar10-cnn-a-adv": {"linf": 2 / 255, "l2": 0.25, "l1": 4.0},
    "cifar10-conv-l1": {"linf": 1 / 255, "l2": 0.25, "l1": 4.0},
}
"""Networks of benchmarks/zoo.py, and a radius of each norm: those of the half on which options are chosen, then some of
the other half."""


@dataclass(frozen=True)
class Task:
    """What both sides are given."""

    model: nn.Module
    x: Tensor
    y: Tensor
    norm: str
    eps: float

    def left(self, adv: Tensor) -> int:
        """How many examples are not broken within eps."""
        with torch.no_grad():
            broken = self.model(adv).argmax(dim=1) != self.y
        return int((~(broken & (self.sizes(adv) <= self.eps * (1 + 1e-4)))).sum())

    def median(self, adv: Tensor) -> float:
        """Of the sizes; infinite where nothing is broken."""
        with torch.no_grad():
            broken = self.model(adv).argmax(dim=1) != self.y
        return float(self.sizes(adv).where(broken, torch.inf).median())

    def sizes(self, adv: Tensor) -> Tensor:
        return torch.linalg.vector_norm((adv - self.x).flatten(1), ord=ORDER[self.norm], dim=1)


def task(key: str, norm: str) -> Task:
    model, data = zoo.load(key)
    x, y = data.fetch(range(min(len(data), 4 * IMAGES)))
    with torch.no_grad():
        right = (model(x).argmax(dim=1) == y).nonzero()[:IMAGES, 0]
    return Task(model, x[right], y[right], norm, SETTINGS[key][norm])


def _ours(what: Task, attack: tmifpe.Attack, seed: int) -> int:
    threat = tmifpe.Threat(what.norm, what.eps)
    found = tmifpe.evaluate(what.model, (what.x, what.y), threat, attack, seed=seed, tune="off", checks=False)
    return round(found.robust_accuracy * found.n)


def _found(what: Task, **options: Any) -> float:
    found = tmifpe.minimal(what.model, what.x, what.y, what.norm, **options)
    return float(found.size.median())


def _wide(steps: int) -> Outside:
    rung = -(-3 * steps // 10)
    return Outside(APGD(loss="ce", steps=rung), last=steps - 2 * rung)


def _their_apgd(what: Task, steps: int, seed: int, **options: Any) -> int:
    from pyautoattack.autopgd_base import APGDAttack

    attack = APGDAttack(what.model, norm=THEIRS[what.norm], n_iter=steps, eps=what.eps, seed=seed, **options)
    return what.left(attack.perturb(what.x, what.y))


def _their_square(what: Task, queries: int, seed: int) -> int:
    from pyautoattack.square import SquareAttack

    attack = SquareAttack(what.model, norm=THEIRS[what.norm], n_queries=queries, eps=what.eps, seed=seed)
    return what.left(attack.perturb(what.x, what.y))


def _their_fab(what: Task, steps: int, seed: int) -> int:
    from pyautoattack.fab_pt import FABAttack_PT

    attack = FABAttack_PT(
        what.model, norm=THEIRS[what.norm], n_restarts=1, n_iter=steps, eps=what.eps, seed=seed, targeted=True,
        n_target_classes=9, device="cpu",
    )  # fmt: skip
    return what.left(attack.perturb(what.x, what.y))


def _their_pgdl2(what: Task, steps: int, seed: int) -> int:
    import torchattacks

    torch.manual_seed(seed)
    attack = torchattacks.PGDL2(what.model, eps=what.eps, alpha=what.eps / 5, steps=steps)
    return what.left(attack(what.x, what.y).detach())


def _our_pgdl2(what: Task, steps: int, seed: int) -> int:
    from tmifpe.compat import torchattacks

    torch.manual_seed(seed)
    attack = torchattacks.PGDL2(what.model, eps=what.eps, alpha=what.eps / 5, steps=steps)
    return what.left(attack(what.x, what.y))


def _library(name: str, **options: Any) -> Callable[[Task, int, int], float]:
    """An attack of adversarial-library, which needs `visdom` for pictures only."""

    def run(what: Task, steps: int, seed: int) -> float:  # noqa: ARG001 - it draws nothing
        heal_torchvision()
        sys.modules.setdefault("visdom", types.ModuleType("visdom")).__dict__.setdefault("Visdom", object)
        from adv_lib import attacks

        norm = {} if name == "ddn" else {"norm": ORDER[what.norm]}
        number = "n_iter" if name == "fab" else "steps"
        given = {number: steps, **norm, **options}
        return what.median(getattr(attacks, name)(what.model, what.x, what.y, **given))

    return run


@dataclass(frozen=True)
class Pair:
    """An attack of ours and the original."""

    title: str
    original: str
    norms: tuple[str, ...]
    steps: tuple[int, ...]
    ours: Callable[[Task, int, int], float]
    theirs: Callable[[Task, int, int], float]
    draws: bool = True


EVERY, FEW = ("linf", "l2", "l1"), (10, 20, 50, 100)
PAIRS = {
    "fmn": Pair(
        "FMN, plain",
        "adv-lib",
        EVERY,
        FEW,
        lambda what, steps, _: _found(what, steps=steps, smooth=0.0),
        _library("fmn"),
        draws=False,
    ),
    "minimal": Pair(
        "`tmifpe.minimal`, against FMN",
        "adv-lib",
        EVERY,
        FEW,
        lambda what, steps, _: _found(what, steps=steps),
        _library("fmn"),
        draws=False,
    ),
    "ddn": Pair(
        "DDN",
        "adv-lib",
        ("l2",),
        FEW,
        lambda what, steps, _: _found(what, attack="ddn", steps=steps, smooth=0.0),
        _library("ddn", levels=None),
        draws=False,
    ),
    "fab": Pair(
        "FAB",
        "adv-lib",
        EVERY,
        (10, 20, 50),
        lambda what, steps, _: _found(what, attack="fab", steps=steps, smooth=0.0),
        _library("fab"),
        draws=False,
    ),
    "apgd-ce": Pair(
        "APGD-CE",
        "pyautoattack",
        EVERY,
        FEW,
        lambda what, steps, seed: _ours(what, APGD(loss="ce", steps=steps), seed),
        lambda what, steps, seed: _their_apgd(what, steps, seed, loss="ce"),
    ),
    "apgd-wide": Pair(
        "APGD-CE, `use_largereps`",
        "pyautoattack",
        ("l1",),
        FEW,
        lambda what, steps, seed: _ours(what, _wide(steps), seed),
        lambda what, steps, seed: _their_apgd(what, steps, seed, loss="ce", use_largereps=True),
    ),
    "pgdl2": Pair("PGDL2", "torchattacks", ("l2",), FEW, _our_pgdl2, _their_pgdl2),
    "square": Pair(
        "Square",
        "pyautoattack",
        EVERY,
        (500, 2000, 5000),
        lambda what, queries, seed: _ours(what, Square(queries), seed),
        _their_square,
    ),
    "fab-t": Pair(
        "FAB-T",
        "pyautoattack",
        EVERY,
        (10, 20),
        lambda what, steps, seed: _ours(what, FAB(steps, towards="each", smallest=False), seed),
        _their_fab,
        draws=False,
    ),
}


def measure(options: argparse.Namespace) -> None:
    sys.path.append(options.peers)
    torch.set_num_threads(1)
    for name in options.attacks.split(",") if options.attacks else PAIRS:
        pair = PAIRS[name]
        for key in options.settings.split(",") if options.settings else SETTINGS:
            for norm in pair.norms:
                what = None
                for steps in pair.steps:
                    if options.most and steps > options.most:
                        continue
                    for seed in range(SEEDS if pair.draws else 1):
                        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
                        cell = kept.setdefault(f"{name} {key} {norm} {steps}", {"ours": {}, "theirs": {}})
                        for side in ("ours", "theirs"):
                            if str(seed) in cell[side]:
                                continue
                            what = what or task(key, norm)
                            value = getattr(pair, side)(what, steps, seed)
                            cell[side][str(seed)] = None if value == float("inf") else value
                        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
                    print(name, key, norm, steps, cell, flush=True)


def _median(values: dict[str, float | None]) -> float:
    return statistics.median(float("inf") if one is None else one for one in values.values())


def weaker(cell: dict[str, dict[str, float | None]]) -> bool:
    """Whether our median is above the original's by more than its seeds differ among themselves."""
    theirs = [float("inf") if one is None else one for one in cell["theirs"].values()]
    least = min(theirs)
    noise = 0.0 if least == float("inf") else max(theirs) - least
    return _median(cell["ours"]) > _median(cell["theirs"]) * (1 + 1e-3) + noise


def table(half: str) -> str:
    kept = json.loads(KEPT.read_text())
    lines = ["| Attack | Network | Norm | Steps: ours / original |", "|---|---|---|---|"]
    for name, pair in PAIRS.items():
        for key in SETTINGS:
            for norm in pair.norms if zoo.half(key) == half else ():
                told: list[str] = []
                for steps in pair.steps:
                    cell = kept.get(f"{name} {key} {norm} {steps}")
                    if cell is None or not cell["theirs"]:
                        continue
                    values = f"{_shown(_median(cell['ours']))} / {_shown(_median(cell['theirs']))}"
                    told.append(f"{steps}: " + (f"**{values}**" if weaker(cell) else values))
                if told:
                    lines.append(f"| {pair.title} | {key} | {norm} | {'; '.join(told)} |")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return "none" if value == float("inf") else f"{value:.3g}" if value % 1 else f"{value:.0f}"


def page(options: argparse.Namespace) -> None:  # noqa: ARG001 - verbs share a signature
    text = PAGE.read_text()
    for half in ("judge", "choose"):
        between = rf"(<!-- {half} -->\n).*?(<!-- /{half} -->)"
        text = re.sub(between, lambda found, half=half: f"{found[1]}{table(half)}\n{found[2]}", text, flags=re.DOTALL)
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("--peers", required=True)
    verb.add_argument("--settings", default="")
    verb.add_argument("--attacks", default="")
    verb.add_argument("--most", type=int, default=0, help="no more steps than that")
    verb.set_defaults(run=measure)
    verbs.add_parser("page").set_defaults(run=page)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
