"""Judges the attacks on the networks of zoo.py: that no shortcut changes a verdict, and that `full` is strong.

    python benchmarks/judge.py shortcuts [--half judge] [--networks a,b] [--attacks full,paper] [--no-checks]
    python benchmarks/judge.py strength [--half judge] [--networks a,b] [--ours | --theirs]
    python benchmarks/judge.py page

`shortcuts` evaluates every setting, a network and a threat, as shipped and without any shortcut, and lists the images
on which they differ. `strength` compares `full`, seeds 0, 1 and 2, with AutoAttack standard on the first images of each
setting. Both write docs/data/judge.json (or the file that TMIFPE_JUDGED names) after every evaluation and skip what is
there, without `--fresh`; `page` writes the tables of docs/zoo.md from it. One thread, one process; cost is forwards + 2
× backwards, those of checks and repairs included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import strength
import zoo

import tmifpe
from tmifpe.core.process import keep_freed_memory

KEPT = Path(os.environ.get("TMIFPE_JUDGED", strength.DATA / "judge.json"))
PAGE = strength.ROOT / "docs" / "zoo.md"
WITHOUT: dict[str, Any] = {"tune": "off", "early_exit": False}
"""The options that switch every shortcut off."""
ATTACKS = ("full", "paper")
SEEDS = (0, 1, 2)
IMAGES = 200
"""The most that AutoAttack is given of a setting."""
LEAST_CLASSES = 4
"""For AutoAttack's targeted loss."""
CHEAP = 0.05
"""Of AutoAttack's cost."""

Setting = tuple[zoo.Network, tmifpe.Threat]


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Those that were asked for, of networks that are trained; quick networks come first."""
    names = options.networks.split(",") if options.networks else list(zoo.networks())
    chosen = [zoo.networks()[name] for name in names if options.half in ("both", zoo.half(name))]
    there = [network for network in chosen if not network.trained or zoo.weights(network.name).exists()]
    for network in sorted(there, key=lambda network: _seconds(network.name)):
        for threat in network.threats:
            yield network, threat


def _seconds(name: str) -> float:
    """Of a forward and a backward pass of all its images."""
    model, data = zoo.load(name)
    x, _ = data.fetch(range(len(data)))
    begun = time.process_time()
    model(x.requires_grad_()).sum().backward()
    return time.process_time() - begun


def key(setting: Setting) -> str:
    network, threat = setting
    return f"{network.name} {threat.norm} {threat.eps:.6g}"


def run(setting: Setting, attack: str, **options: Any) -> tuple[tmifpe.Result, dict[str, Any]]:
    """One evaluation, and what is kept of it."""
    network, threat = setting
    model, data = zoo.load(network.name)
    result = tmifpe.evaluate(model, data, threat, attack, **options)
    return result, {
        "robust": result.robust,
        "passes": result.spent.forwards + 2 * result.spent.backwards,
        "seconds": round(result.seconds, 1),
        "check_forwards": result.check_forwards,
        "flags": [flag.name for flag in result.flags],
        "tuning": str(result.plan.tuning),
        "early_exit": None if result.early_exits is None else str(result.early_exits),
    }


def shortcuts(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    found = kept.setdefault("shortcuts", {})
    more = {"checks": False} if options.no_checks else {}
    for setting in settings(options):
        for attack in options.attacks.split(","):
            name = f"{key(setting)} {attack}" + " unchecked" * options.no_checks
            if name in found and not options.fresh:
                continue
            shipped, entry = run(setting, attack, **more)
            plain, without = run(setting, attack, **more, **WITHOUT)
            mine, theirs = shipped.outcomes, plain.outcomes
            differ = [
                {
                    "index": int(mine.index[row]),
                    "robust": [bool(each.robust[row]) for each in (mine, theirs)],
                    "margin": [float(each.margin[row]) for each in (mine, theirs)],
                }
                for row in (mine.robust != theirs.robust).nonzero()[0]
            ]
            found[name] = {
                "images": shipped.n,
                "clean": int(mine.correct.sum()),
                "shipped": entry,
                "without": without,
                "differ": differ,
                "commit": commit(),
            }
            keep(kept)
            print(name, entry["robust"], without["robust"], [each["index"] for each in differ], flush=True)


def strengths(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    found = kept.setdefault("strength", {})
    for setting in settings(options):
        _, data = zoo.load(setting[0].name)
        if data.classes < LEAST_CLASSES:
            continue
        entry = found.setdefault(key(setting), {"images": min(setting[0].images, IMAGES), "full": {}})
        seeds = [] if options.theirs else [seed for seed in SEEDS if options.fresh or str(seed) not in entry["full"]]
        for seed in seeds:
            _, ours = run(setting, "full", limit=IMAGES, seed=seed)
            entry["full"][str(seed)] = ours | {"commit": commit()}
            keep(kept)
            print(key(setting), "full", seed, ours["robust"], ours["passes"], f"{ours['seconds']} s", flush=True)
        if not options.ours and "autoattack" not in entry:
            _, theirs = run(setting, "autoattack", limit=IMAGES, checks=False, tune="off")
            entry["autoattack"] = theirs
            keep(kept)
            print(key(setting), "autoattack", theirs["robust"], theirs["passes"], f"{theirs['seconds']} s", flush=True)


def commit() -> str:
    """What was measured: outcomes are those of a version."""
    git = ["git", "-C", str(strength.ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def read() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def of_these_weights(kept: dict[str, Any]) -> dict[str, Any]:
    """Without what was measured on other weights: training repeats to the bit on one kind of processor only."""
    known, now = kept.get("weights", {}), zoo.digests()
    other = {name for name in now if known.get(name, now[name]) != now[name]}
    for part in ("shortcuts", "strength"):
        kept[part] = {name: entry for name, entry in kept.get(part, {}).items() if name.split()[0] not in other}
    if other:
        print(f"measured anew, since the weights are others: {', '.join(sorted(other))}", flush=True)
    return kept | {"weights": known | now}


def keep(kept: dict[str, Any]) -> None:
    """What another process wrote in the meantime stays: two may run, on other settings or other parts of the same."""
    merged = _merged(read(), kept)
    beside = KEPT.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(merged, indent=1) + "\n")
    beside.replace(KEPT)


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}


def page(_: argparse.Namespace, kept: dict[str, Any]) -> None:
    text = PAGE.read_text()
    made = {"networks": _networks(kept)}
    for half in ("judge", "choose"):
        made[f"shortcuts {half}"] = _shortcuts(kept, half)
    made["strength judge"] = _strength(kept, "judge")
    for name, table in made.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(marked, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    PAGE.write_text(text)


def _of_half(found: dict[str, Any], half: str) -> dict[str, Any]:
    return {name: entry for name, entry in found.items() if zoo.half(name.split()[0]) == half}


def _threat(name: str) -> str:
    norm, eps = name.split()[1:3]
    whole = float(eps) * 255
    bytes_wide = norm == "linf" and name.startswith("cifar10")
    return f"{norm} {f'{whole:.3g}/255' if bytes_wide else eps}"


def _shortcuts(kept: dict[str, Any], half: str) -> str:
    found = _of_half(kept.get("shortcuts", {}), half)
    if not found:
        return "Not measured yet."
    head = "| network | threat | attack | images | as shipped | without | that differ | passes | early exit | flags |"
    rows = [head, "|---|---|---|" + "---:|" * 3 + "---|---:|---|---|"]
    for name, entry in found.items():
        mine, theirs = entry["shipped"], entry["without"]
        differ = ", ".join(f"{each['index']} ({'lost' if each['robust'][0] else 'gained'})" for each in entry["differ"])
        cells = [name.split()[0], _threat(name), " ".join(name.split()[3:]), entry["images"], mine["robust"]]
        cells += [theirs["robust"], differ or "none", f"{mine['passes'] / theirs['passes']:.0%}"]
        rows.append("| " + " | ".join(map(str, [*cells, mine["early_exit"] or "", ", ".join(mine["flags"])])) + " |")
    return _shortcuts_in_words(found) + "\n\n" + "\n".join(rows)


def _shortcuts_in_words(found: dict[str, Any]) -> str:
    def count(squared: bool) -> tuple[int, int, int]:
        some = [entry for name, entry in found.items() if zoo.networks()[name.split()[0]].squared is squared]
        differ = [each for entry in some for each in entry["differ"]]
        return sum(entry["images"] for entry in some), len(differ), sum(each["robust"][0] for each in differ)

    (images, differ, lost), (squared_images, squared_differ, squared_lost) = count(False), count(True)
    shares = [entry["shipped"]["passes"] / entry["without"]["passes"] for entry in found.values()]
    return (
        f"{len(found)} evaluations. Networks trained by squared error: of {squared_images} verdicts {squared_differ} "
        f"differ, {squared_lost} of them lost. The others: of {images} verdicts {differ} differ "
        f"({1000 * differ / max(images, 1):.2f} in 1,000), {lost} of them lost. The shipped run takes "
        f"{statistics.median(shares):.0%} of the passes in the median."
    )


def _strength(kept: dict[str, Any], half: str) -> str:
    found = _of_half(kept.get("strength", {}), half)
    found = {name: entry for name, entry in found.items() if "autoattack" in entry and entry["full"]}
    if not found:
        return "Not measured yet."
    head = "| network | threat | images | AutoAttack | `full`, by seed | its cost | AutoAttack's passes |"
    rows = [head, "|---|---|---:|---:|---|---:|---:|"]
    for name, entry in found.items():
        left = ", ".join(str(run["robust"]) for run in entry["full"].values())
        cells = [name.split()[0], _threat(name), entry["images"], entry["autoattack"]["robust"], left]
        rows.append("| " + " | ".join(map(str, [*cells, f"{share(entry):.1%}", entry["autoattack"]["passes"]])) + " |")
    return _strength_in_words(found) + "\n\n" + "\n".join(rows)


def share(entry: dict[str, Any]) -> float:
    """What `full` costs of AutoAttack, by the median of its seeds."""
    return statistics.median(run["passes"] for run in entry["full"].values()) / entry["autoattack"]["passes"]


def above(entry: dict[str, Any]) -> float:
    """How many images more `full` leaves, by the median of its seeds."""
    return statistics.median(run["robust"] for run in entry["full"].values()) - entry["autoattack"]["robust"]


def _strength_in_words(found: dict[str, Any]) -> str:
    more, costs = [above(entry) for entry in found.values()], [share(entry) for entry in found.values()]
    return (
        f"{len(found)} settings. `full` is at or below AutoAttack on {sum(m <= 0 for m in more)} "
        f"({sum(m <= 0 for m in more) / len(more):.0%}), below it on {sum(m < 0 for m in more)}, more than one image "
        f"above on {sum(m > 1 for m in more)}. Its cost is {statistics.median(costs):.1%} of AutoAttack's in the "
        f"median, at most {max(costs):.1%}, and at most {CHEAP:.0%} on {sum(c <= CHEAP for c in costs)}."
    )


def _networks(kept: dict[str, Any]) -> str:
    clean = {name.split()[0]: entry["clean"] / entry["images"] for name, entry in kept.get("shortcuts", {}).items()}
    rows = ["| network | half | data | what it is | clean |", "|---|---|---|---|---:|"]
    for name, network in sorted(zoo.networks().items(), key=lambda item: item[1].half, reverse=True):
        made = (zoo.RECIPES | zoo.SHARED)[name]
        right = f"{clean[name]:.1%}" if name in clean else ""
        rows.append(f"| {name} | {network.half} | {made.data} | {zoo.describe(name)} | {right} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, half in (("shortcuts", "both"), ("strength", "judge")):
        verb = verbs.add_parser(name)
        verb.add_argument("--half", default=half, choices=("judge", "choose", "both"))
        verb.add_argument("--fresh", action="store_true", help="measure again; AutoAttack's runs are kept")
        verb.add_argument("--networks", default="", help="some of zoo.py list; all without it")
        if name == "shortcuts":
            verb.add_argument("--attacks", default=",".join(ATTACKS))
            verb.add_argument("--no-checks", action="store_true", help="for a first look; kept under a name of its own")
        else:
            which = verb.add_mutually_exclusive_group()
            which.add_argument("--ours", action="store_true", help="only `full`")
            which.add_argument("--theirs", action="store_true", help="only AutoAttack")
    verbs.add_parser("page", help="write the tables of docs/zoo.md")
    options = parser.parse_args()
    os.environ.pop("TMIFPE_TUNE", None)  # what ships is judged
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.verb == "page":
        page(options, read())
        return
    kept = of_these_weights(read())
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    {"shortcuts": shortcuts, "strength": strengths}[options.verb](options, kept)


if __name__ == "__main__":
    main()
