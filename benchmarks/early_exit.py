"""How the values of early exit were chosen: wrong exits and steps taken, on the choose half of the zoo.

    python benchmarks/early_exit.py [--networks NAME,...] [--images 200] [--check]

Every correct example takes all 100 steps of PGD with T-MIFPE, plain and smoothed; on the way its margin and its linear
gain by three slopes are noted. For several rules this counts the examples that would have stopped although a later
step breaks them, and the share of the steps that would have been taken: docs/data/early-exit.json and a table in
docs/cost.md.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import torch
import zoo
from torch import Tensor

import tmifpe
from tmifpe.attacks import PGD, Loop, Problem, Queries
from tmifpe.attacks.loop.early_exit import EarlyExit, Exit, linear_gain
from tmifpe.core import numerics

DOCS = Path(__file__).resolve().parent.parent / "docs"
KEPT, PAGE = DOCS / "data" / "early-exit.json", DOCS / "cost.md"
SHARES = (0.0, 3.0, 9.0)
"""Smoothings of the backward pass at which the gain is noted; 0 is the true slope."""
EVERY = 10
RULES: dict[str, dict[str, Any]] = {
    "true, 10, 5": {"shares": (0.0,)},
    "true and smoothed 3, 10, 5": {"shares": (0.0, 3.0)},
    "true and smoothed 9, 10, 5": {"shares": (0.0, 9.0)},
    "**true and smoothed 9, 20, 5**": {"shares": (0.0, 9.0), "at": (20, 40, 80)},
    "true and smoothed 9, 20, 3": {"shares": (0.0, 9.0), "at": (20, 40, 80), "times": 3.0},
    "true and smoothed 9, 20, 10": {"shares": (0.0, 9.0), "at": (20, 40, 80), "times": 10.0},
}
WRONG_RULES = {
    "a tenth of the times": EarlyExit(times=0.5),
    "the true slope alone, from the first query": EarlyExit(times=1.0, smooth=0.0, at=tuple(range(1, 100))),
    "margins that are far away": EarlyExit(times=-1.0, at=(10,)),
}
NEVER = 10**6


def traced(model: Any, data: Any, threat: tmifpe.Threat, attack: PGD) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The query that breaks each correct example, its clean margin, and at every tenth query (k) its margin (k, n) and
    its rise by each slope (k, slopes, n), infinite where nothing is promised."""
    x, y = data.fetch(range(len(data)))
    with torch.no_grad():
        rows = (model(x).argmax(dim=1) == y).nonzero()[:, 0]
    problem = Problem(x[rows], y[rows], None, rows, threat)
    queries, state, margins, rises = Queries(model), attack.init(problem), [], []
    broken = torch.full_like(problem.labels, NEVER)
    for look in range(attack.looks):
        objective, smooth = attack.objective(problem, state), attack.smoothness(state)
        seen = queries.look(state.x, objective, smooth)
        margin = numerics.margin(seen.logits, problem.labels)
        broken[(margin > 0) & (broken == NEVER)] = look
        if look and look % EVERY == 0 and look < attack.steps:
            margins.append(margin)
            rises.append(torch.stack([_rise(problem, queries, state, objective, share) for share in SHARES]))
        state = attack.step(problem, state, seen)
    return broken, numerics.margin(queries.logits(problem.x), problem.labels), torch.stack(margins), torch.stack(rises)


def _rise(problem: Problem, queries: Queries, state: Any, objective: Any, share: float) -> Tensor:
    true = queries.look(state.x, objective)
    told = queries.look(state.x, objective, torch.full_like(true.logits[:, 0], share)) if share else true
    assert true.grad is not None
    assert told.grad is not None
    assert true.slope is not None
    own = -true.slope.gather(1, problem.labels[:, None])[:, 0]
    rest = true.slope.scatter(1, problem.labels[:, None], 0.0).amin(dim=1)
    rise = linear_gain(problem.norm, told.grad, state.x, problem.ball, state.region) / own
    alive = (own > 0) & (rest >= -1e-5 * own) & torch.isfinite(rise) & (true.grad.flatten(1) != 0).any(dim=1)
    return torch.where(alive, rise, torch.inf)


def judged(
    trace: tuple[Tensor, Tensor, Tensor, Tensor],
    shares: tuple[float, ...],
    times: float = 5.0,
    at: tuple[int, ...] = tuple(range(EVERY, 100, EVERY)),
    level: float = 0.0,
) -> dict[str, Any]:
    """Of one rule: how many would stop, how many of these wrongly, and the share of the steps that are taken."""
    broken, clean, margins, rises = trace
    left = torch.full_like(broken, NEVER)
    for k, look in enumerate(range(EVERY, EVERY * (len(margins) + 1), EVERY)):
        rise = rises[k, [SHARES.index(share) for share in shares]].amax(dim=0)
        stops = (margins[k] + times * rise < 0) & (margins[k] + 1.5 * rise < level * clean)
        left[stops & (left == NEVER) & (look in at)] = look
    end = torch.full_like(broken, 100)
    taken, whole = torch.minimum(torch.minimum(left, broken), end).sum(), torch.minimum(broken, end).sum()
    stopped = (left < broken).sum()
    return {
        "stopped": int(stopped),
        "wrong": int(((left < broken) & (broken < NEVER)).sum()),
        "steps": round(float(taken / whole.clamp(min=1)), 3),
    }


def checked(model: Any, data: Any, threat: tmifpe.Threat, seeds: range) -> dict[str, list[list[int]]]:
    """Of rules made wrong on purpose: in a run of each seed, how many examples stopped although all steps break them,
    and how many of the examples that were checked said so."""
    x, y = data.fetch(range(len(data)))
    with torch.no_grad():
        rows = (model(x).argmax(dim=1) == y).nonzero()[:, 0]
    found: dict[str, list[list[int]]] = {name: [] for name in WRONG_RULES}
    for seed in seeds:
        problem = Problem(x[rows], y[rows], None, rows, threat, seed)
        truth = PGD().run(problem, Queries(model), Loop()).fooled
        for name, rule in WRONG_RULES.items():
            exits = PGD().run(problem, Queries(model), Loop(early_exit=rule)).exit
            found[name].append([int((truth & (exits == Exit.STOPPED)).sum()), int((exits == Exit.WRONG).sum())])
    return found


def check(names: list[str], images: int, seeds: range = range(5)) -> dict[str, Any]:
    """Of all runs of such a rule in which five examples or more stopped wrongly: in how many a check said so."""
    runs: dict[str, list[list[int]]] = {name: [] for name in WRONG_RULES}
    for name in names:
        model, data = zoo.load(name)
        for threat in zoo.networks()[name].threats:
            few = tmifpe.data.subset(data, range(min(images, len(data))))
            network = model.module if isinstance(model, tmifpe.Classifier) else model
            for rule, found in checked(network, few, threat, seeds).items():
                runs[rule] += found
        told = {
            rule: (sum(w >= 5 for w, _ in found), sum(w >= 5 and c > 0 for w, c in found))
            for rule, found in runs.items()
        }
        print(name, told, flush=True)
    return {rule: {"wrong_in_5_or_more": wrong, "caught": caught} for rule, (wrong, caught) in told.items()}


def table(kept: dict[str, Any]) -> str:
    """Every rule over all settings but those at L1, where no example stops early."""
    lines = ["| slopes, first query, times | plain: stopped | wrong | steps | smoothed: stopped | wrong | steps |"]
    lines += ["|---|" + "---:|" * 6]
    for rule in RULES:
        cells = []
        for smooth in ("0", "3"):
            found = [one[rule] for key, one in kept.items() if key.endswith(f" {smooth}") and " l1 " not in key]
            steps = sum(one["steps"] for one in found) / max(1, len(found))
            cells += [sum(one["stopped"] for one in found), sum(one["wrong"] for one in found), f"{steps:.0%}"]
        lines.append(f"| {rule} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def write_page(kept: dict[str, Any]) -> None:
    text = PAGE.read_text()
    marked = r"(<!-- early-exit -->\n).*?(<!-- end -->)"
    PAGE.write_text(re.sub(marked, lambda found: f"{found[1]}{table(kept)}\n{found[2]}", text, flags=re.DOTALL))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help="names, separated by commas; default: the choose half")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--check", action="store_true", help="only: do the checks find rules made wrong on purpose?")
    options = parser.parse_args()
    known = zoo.networks()
    names = options.networks.split(",") if options.networks else [n for n, one in known.items() if one.half == "choose"]
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if options.check:
        kept["check"] = check(names, options.images)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        names = []
    for name, smooth in product(names, (0.0, 3.0)):
        model, data = zoo.load(name)
        for threat in known[name].threats:
            key = f"{name} {threat.norm} {threat.eps:.4g} {smooth:g}"
            if key in kept:
                continue
            few = tmifpe.data.subset(data, range(min(options.images, len(data))))
            network = model.module if isinstance(model, tmifpe.Classifier) else model
            trace = traced(network, few, threat, PGD(smooth=smooth))
            level = 0.55 if smooth else 0.0  # of the stages of `full` that attack for being near
            kept[key] = {rule: judged(trace, level=level, **values) for rule, values in RULES.items()}
            print(key, json.dumps(kept[key]), flush=True)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    write_page(kept)


if __name__ == "__main__":
    main()
