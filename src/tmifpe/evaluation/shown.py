"""A comparison as a table and as a figure."""

from __future__ import annotations

__all__ = ["comparison_sheet", "plot_comparison"]

from typing import TYPE_CHECKING, Any

from tmifpe.core.shown.palette import COLOURS
from tmifpe.core.shown.sheet import Sheet, fitted, percent
from tmifpe.run.shown.plot import new_figure, plain_text

if TYPE_CHECKING:
    from tmifpe.evaluation.compare import Comparison


def comparison_sheet(comparison: Comparison) -> Sheet:
    """One line per column, the best attack in no special place; several seeds with their range."""
    first = next(iter(comparison.results.values()))[0]
    many = len(comparison.seeds) > 1
    ce = comparison.mean("ce") if "ce" in comparison.results else None
    head = ("column", "robust %", "95 % interval", *(() if ce is None else ("to CE",)))
    head += (*(("min", "max", "all seeds together") if many else ()), "seconds")
    rows = []
    for name, runs in comparison.results.items():
        low, high = comparison.interval(name)
        cells = [name, percent(comparison.mean(name)), f"{percent(low)} to {percent(high)}"]
        cells += [] if ce is None else [f"{100 * (comparison.mean(name) - ce):+.2f}"]
        if many:
            values = comparison.accuracies(name)
            cells += [percent(min(values)), percent(max(values)), percent(comparison.worst_case(name))]
        rows.append((*cells, f"{sum(run.seconds for run in runs) / len(runs):.1f}"))
    threat = first.spec.threat
    title = f"{first.spec.model} on {first.spec.data}"
    note = f"{first.n} examples, clean {percent(comparison.clean_accuracy)} %, {threat.norm} eps {threat.eps:.6g}."
    return Sheet(title, head, tuple(rows), note)


def plot_comparison(comparison: Comparison) -> Any:
    """A bar per column with its interval; the dashed line is clean accuracy."""
    names = list(comparison.results)
    figure = new_figure(8, 1.4 + 0.34 * len(names))
    axes = figure.add_subplot()
    means = [100 * comparison.mean(name) for name in names]
    ends = [[100 * end for end in comparison.interval(name)] for name in names]
    error = [
        [max(0.0, mean - low) for mean, (low, _) in zip(means, ends, strict=True)],
        [max(0.0, high - mean) for mean, (_, high) in zip(means, ends, strict=True)],
    ]
    axes.barh(range(len(names)), means, 0.7, xerr=error, capsize=2, color=COLOURS[0])
    for k, mean in enumerate(means):  # in a column of their own, which nothing crosses
        axes.text(102, k, f"{mean:.1f}", va="center", fontsize=8)
    axes.axvline(100 * comparison.clean_accuracy, color="black", linestyle="--", linewidth=1)
    small = 8 if max(map(len, names)) > 24 else 10
    axes.set_yticks(range(len(names)), [plain_text(fitted(name, 52)) for name in names], fontsize=small)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("robust accuracy, % (dashed: clean)")
    spec = comparison.results[names[0]][0].spec
    figure.suptitle(plain_text(f"{fitted(spec.model, 50)} on {fitted(spec.data, 40)}"), fontsize=10)
    return figure
