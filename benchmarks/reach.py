"""Examples that leave because they are out of reach: whom that turns away wrongly, and what it saves.

    python benchmarks/reach.py times --shared ../shared [--lines fast,r4b] [--losses tmifpe] [--smooth 0,3]
    python benchmarks/reach.py verdicts --shared ../shared [--lines fast,r4b] [--attacks paper,full] [--seeds 0]
    python benchmarks/reach.py page

`times` lets every correct example take all 100 steps of PGD, notes margin and linear gain on the way, and counts
for several values of `Reach.times` who would have left although a later step breaks it. `verdicts` evaluates every line
as `--tune auto` does and with `--tune off`, and lists every example on which they differ. `page` writes both tables of
docs/cost.md from docs/data/reach.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))
import strength

import tmifpe
from tmifpe.attacks import PGD, Problem, Queries
from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.reach import Reach
from tmifpe.core import numerics
from tmifpe.core.process import keep_freed_memory

KEPT = strength.DATA / "reach.json"
PAGE = strength.ROOT / "docs" / "cost.md"
TIMES = (2.0, 3.0, 4.0, 5.0, 6.0)
LINES = "fast,kw,trades,lenet,r2b,r4b,r2b-8,r4b-8,fast-l2,trades-l2,lenet-l2,r2b-l2"
MOST = 1000
"""Images of a line."""


def times(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    found = kept.setdefault("times", {})
    for key in options.lines.split(","):
        line = strength.LINES[key]
        model, data = strength.load(replace(line, limit=min(line.limit, MOST)), Path(options.shared))
        for loss in options.losses.split(","):
            for smooth in map(float, options.smooth.split(",")):
                told = _left_too_early(model.module, data, line, PGD(loss=loss, smooth=smooth))
                found[f"{key} {loss} {smooth:g}"] = told
                print(key, loss, smooth, json.dumps(told), flush=True)
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def _left_too_early(model: Any, data: Any, line: strength.Line, attack: PGD) -> dict[str, Any]:
    """For every number of times: rows that leave before a step that breaks them, and the share of steps taken."""
    x, y = data.fetch(range(len(data)))
    told: dict[str, Any] = {"rows": 0, "broken": 0, "wrong": {}, "share": {}}
    taken, whole = dict.fromkeys(TIMES, 0), 0
    wrong = dict.fromkeys(TIMES, 0)
    for start in range(0, len(x), 256):
        rows = torch.arange(start, min(start + 256, len(x)))
        with torch.no_grad():
            rows = rows[model(x[rows]).argmax(dim=1) == y[rows]]
        problem = Problem(x[rows], y[rows], None, rows, tmifpe.Threat(line.norm, line.eps))
        broken, left = _trajectories(model, problem, attack)
        told["rows"] += len(rows)
        told["broken"] += int((broken < attack.looks).sum())
        whole += int(broken.clamp(max=attack.steps).sum())
        for number in TIMES:
            wrong[number] += int(((left[number] < broken) & (broken < attack.looks)).sum())
            taken[number] += int(torch.minimum(broken, left[number]).clamp(max=attack.steps).sum())
    told["wrong"] = {f"{number:g}": wrong[number] for number in TIMES}
    told["share"] = {f"{number:g}": round(taken[number] / whole, 3) for number in TIMES}
    return told


def _trajectories(model: Any, problem: Problem, attack: PGD) -> tuple[Tensor, dict[float, Tensor]]:
    """The look at which each row breaks, and that at which it would leave; a million where it never does."""
    queries, state = Queries(model), attack.init(problem)
    never = torch.full_like(problem.labels, 10**6)
    broken, left = never.clone(), {number: never.clone() for number in TIMES}
    for look in range(attack.looks):
        objective, smooth = attack.objective(problem, state), attack.smoothness(state)
        evaluated = queries.look(state.x, objective, smooth)
        won = (numerics.margin(evaluated.logits, problem.labels) > 0) & (broken == 10**6)
        broken[won] = look
        if look < attack.steps and bool(Reach().due(state.looks).any()):
            plain: Evaluated = evaluated if smooth is None else queries.look(state.x, objective)
            assert plain.grad is not None
            gain = attack.gain(problem, state, plain.grad)
            for number in TIMES:
                beyond = replace(Reach(), times=number).beyond(problem, plain, gain) & (left[number] == 10**6)
                left[number][beyond] = look
        state = attack.step(problem, state, evaluated)
    return broken, left


def verdicts(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    found = kept.setdefault("verdicts", {})
    for key in options.lines.split(","):
        line = strength.LINES[key]
        model, data = strength.load(replace(line, limit=min(line.limit, MOST)), Path(options.shared))
        for attack in options.attacks.split(","):
            for seed in map(int, options.seeds.split(",")):
                threat = tmifpe.Threat(line.norm, line.eps)
                tuned, plain = (
                    tmifpe.evaluate(model, data, threat, attack, seed=seed, tune=tune, checks=False)
                    for tune in ("auto", "off")
                )
                differ = (tuned.outcomes.robust != plain.outcomes.robust).nonzero()[0].tolist()
                told = {
                    "images": len(tuned.outcomes),
                    "robust": [int(run.outcomes.robust.sum()) for run in (tuned, plain)],
                    "only_tuned_breaks": [
                        int(plain.outcomes.index[row]) for row in differ if plain.outcomes.robust[row]
                    ],
                    "only_plain_breaks": [
                        int(plain.outcomes.index[row]) for row in differ if tuned.outcomes.robust[row]
                    ],
                    "passes": [run.tally.forwards + 2 * run.tally.backwards for run in (tuned, plain)],
                    "tuning": str(tuned.plan.tuning),
                }
                found[f"{key} {attack} {seed}"] = told
                print(key, attack, seed, json.dumps(told), flush=True)
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def page(_: argparse.Namespace, kept: dict[str, Any]) -> None:
    text = PAGE.read_text()
    for name, table in {"reach": _times_table(kept["times"]), "verdicts": _verdicts_table(kept["verdicts"])}.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(marked, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    PAGE.write_text(text)


def _titled(key: str) -> str:
    line = strength.LINES[key]
    return f"{line.title}, {strength.threat(line)}"


def _times_table(found: dict[str, Any]) -> str:
    head = "| model | loss | smooth | rows | broken | " + " | ".join(f"{number:g}" for number in TIMES) + " |"
    lines = [head, "|---|---|---:|---:|---:|" + "---:|" * len(TIMES)]
    for name, told in found.items():
        key, loss, smooth = name.split()
        cells = [
            f"{told['share'][n]:.0%}" + (f", {told['wrong'][n]} wrong" * bool(told["wrong"][n])) for n in told["wrong"]
        ]
        lines.append(
            f"| {_titled(key)} | {loss} | {smooth} | {told['rows']} | {told['broken']} | {' | '.join(cells)} |"
        )
    rows = sum(told["rows"] for told in found.values())
    wrong = {n: sum(told["wrong"][n] for told in found.values()) for n in next(iter(found.values()))["wrong"]}
    lines.append(f"| all | | | {rows} | | " + " | ".join(f"{count} wrong" for count in wrong.values()) + " |")
    return "\n".join(lines)


def _verdicts_table(found: dict[str, Any]) -> str:
    lines = [
        "| model | attack | seed | images | robust, `auto` | robust, `off` | differ | passes |",
        "|---|---|" + "---:|" * 6,
    ]
    for name, told in found.items():
        key, attack, seed = name.split()
        differ = [f"{index} (only tuned breaks it)" for index in told["only_tuned_breaks"]]
        differ += [f"{index} (only untuned breaks it)" for index in told["only_plain_breaks"]]
        mine, theirs = told["robust"]
        share = told["passes"][0] / told["passes"][1]
        cells = [
            _titled(key),
            f"`{attack}`",
            seed,
            str(told["images"]),
            str(mine),
            str(theirs),
            ", ".join(differ) or "none",
        ]
        lines.append("| " + " | ".join([*cells, f"{share:.0%}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("times", "verdicts"):
        verb = verbs.add_parser(name)
        verb.add_argument("--shared", default=str(strength.ROOT.parent / "shared"))
        verb.add_argument("--lines", default=LINES, help=f"some of {','.join(strength.LINES)}")
        if name == "times":
            verb.add_argument("--losses", default="tmifpe")
            verb.add_argument("--smooth", default="0,3")
        else:
            verb.add_argument("--attacks", default="paper,full")
            verb.add_argument("--seeds", default="0")
    verbs.add_parser("page", help="write the tables of docs/cost.md")
    options = parser.parse_args()
    keep_freed_memory()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    {"times": times, "verdicts": verdicts, "page": page}[options.verb](options, kept)


if __name__ == "__main__":
    main()
