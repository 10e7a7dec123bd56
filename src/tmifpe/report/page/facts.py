"""What a report says in words and tables, from a result."""

from __future__ import annotations

__all__ = [
    "classes_sheet",
    "comparison_sheet",
    "confusion_sheet",
    "differences",
    "layers_sheet",
    "line_sheet",
    "name_of",
    "names_of",
    "provenance_sheet",
    "short_names_of",
]

from collections.abc import Sequence

import numpy as np

from tmifpe.core.shown.sheet import Sheet, fitted, percent
from tmifpe.core.stats import holm, mcnemar
from tmifpe.report.page.command import command
from tmifpe.report.page.measured import Confusion, Line, Shares
from tmifpe.report.page.reported import Reported
from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import checks_said, clean_said


def classes_sheet(result: Result, shares: Sequence[Shares]) -> Sheet:
    rows = tuple(
        (result.class_name(one.label), str(one.n), percent(one.clean), percent(one.robust),
         f"{percent(one.low)} to {percent(one.high)}")
        for one in shares
    )  # fmt: skip
    return Sheet("Robust accuracy per class", ("class", "examples", "clean %", "robust %", "95 % interval"), rows)


def confusion_sheet(result: Result, found: Confusion, most: int = 25) -> Sheet:
    """The most frequent changes of a prediction."""
    called = result.class_name
    moves = [
        (count, called(found.labels[i]), called(found.labels[j]))
        for i, row in enumerate(found.counts)
        for j, count in enumerate(row)
        if count and i != j
    ]
    moves.sort(key=lambda move: -move[0])
    rows = tuple((before, after, str(count)) for count, before, after in moves[:most])
    note = "" if found.whole else "Of many classes, those that change most."
    return Sheet("Predictions clean → adversarial", ("clean", "adversarial", "examples"), rows, note)


def line_sheet(title: str, x: str, lines: Sequence[Line], most: int = 60) -> Sheet:
    """The points of a chart; of many, some."""
    rows: list[tuple[str, ...]] = []
    for line in lines:
        places = np.unique(np.linspace(0, len(line.x) - 1, min(most, len(line.x))).astype(int))
        rows += [(line.name, f"{line.x[k]:.6g}", percent(line.y[k])) for k in places]
    return Sheet(title, ("line", x, "robust %"), tuple(rows))


def layers_sheet(result: Result) -> Sheet:
    """Where the gradient dies, if that was looked at: all modules that kill it, else the first thirty."""
    dying = [layer for layer in result.layers if layer.dies]
    rows = tuple(
        (layer.name or "the model itself", layer.kind, percent(layer.none, 0), percent(layer.faint, 0),
         percent(layer.shattered, 0), percent(layer.off, 0))
        for layer in (dying or result.layers[:30])
    )  # fmt: skip
    note = f"{len(dying)} of {len(result.layers)} modules let less than 90 % of the gradients pass." if rows else ""
    head = ("module", "kind", "none %", "nearly none %", "shattered %", "units off %")
    return Sheet("Where the gradient dies", head, rows, note)


def provenance_sheet(reported: Reported) -> Sheet:
    """Everything that it takes to repeat the number."""
    result, spec = reported.result, reported.result.spec
    rows = [
        ("run", reported.run or result.key or "not stored"),
        ("command", command(result)),
        ("model", spec.model),
        *(("model option", option) for option in spec.model_options),
        ("model identity", spec.model_identity or "not known"),
        ("data", f"{spec.data}, {spec.n} of {spec.total} examples"),
        ("data identity", spec.data_identity or "not known"),
        *((f"stage {k}", attack) for k, attack in enumerate(spec.attacks, start=1)),
        ("precision, mode, seed", f"{spec.precision}, {spec.mode}, {spec.seed}"),
        ("batch, shard", f"{result.plan.batch_size}, {result.plan.shard_size}"),
        ("results version", str(spec.results_version)),
        ("started, finished", f"{reported.started or '?'}, {reported.finished or 'not finished'}"),
        *((f"computed with ({k})", text) for k, text in enumerate(reported.sessions, start=1)),
        *(("note", text) for text in result.notes),
    ]
    return Sheet("Provenance", (), tuple(rows), code=("command",))


def comparison_sheet(reports: Sequence[Reported]) -> Sheet:
    """Table 1 of the paper: a row per model, data and threat, a column per attack; `robust ± half the interval`."""
    attacks = list(dict.fromkeys(one.attack for one in reports))
    places: dict[tuple[str, ...], dict[str, str]] = {}
    for one in reports:
        spec = one.result.spec
        where = (one.model, spec.data, one.threat, str(spec.n), clean_said(one.result).removesuffix(" %"))
        cells = places.setdefault(where, {})
        told = _cell(one.result)
        cells[one.attack] = f"{cells[one.attack]}, {told}" if one.attack in cells else told
    rows = tuple((*where, *(cells.get(attack, "") for attack in attacks)) for where, cells in places.items())
    head = ("model", "data", "threat", "examples", "clean %", *attacks)
    named = zip(names_of(reports), reports, strict=True)
    unchecked = [f"{name}: {said}" for name, one in named if (said := checks_said(one.result)) != "all"]
    note = (
        f" Where not all checks have run, no flag says little. Checks of {'. Of '.join(unchecked)}."
        if unchecked
        else ""
    )
    return Sheet("Comparison", head, rows, f"Robust accuracy in %, with its 95 % interval.{note}")


def _cell(result: Result) -> str:
    low, high = result.interval if result.complete else result.bounds
    within = f"({percent(low)} to {percent(high)})"
    return f"{within} incomplete" if not result.complete else f"{percent(result.robust_accuracy)} {within}"


def differences(reports: Sequence[Reported], most: int = 12) -> Sheet:
    """McNemar's exact test for pairs of runs on the same examples under one threat, with Holm's correction; of many
    runs, the first."""
    tests = []
    named = zip(names_of(reports), reports, strict=True)
    chosen = [(name, one) for name, one in named if one.result.complete][:most]
    for k, (first, one) in enumerate(chosen):
        for second, other in chosen[k + 1 :]:
            a, b = one.result, other.result
            same = (a.spec.data_identity, a.spec.subset, a.spec.targets, a.spec.threat) == (
                b.spec.data_identity, b.spec.subset, b.spec.targets, b.spec.threat)  # fmt: skip
            if same and np.array_equal(a.outcomes.index, b.outcomes.index):
                # An example that is misclassified to begin with is as good as broken.
                tests.append(mcnemar(first, second, ~a.outcomes.robust, ~b.outcomes.robust))
    rows = tuple(
        (test.first, test.second, str(test.only_first), str(test.only_second), f"{test.adjusted:.2g}",
         "yes" if test.differs else "may be chance")
        for test in holm(tests)
    )  # fmt: skip
    head = ("first", "second", "broken only by the first", "only by the second", "adjusted p", "more than chance")
    return Sheet("Differences", head, rows, "McNemar's exact test on the same examples, Holm's correction, 5 %.")


def names_of(reports: Sequence[Reported]) -> list[str]:
    """The runs by what tells them apart: a model, an attack or a threat that all share is left out."""
    return [", ".join(parts) for parts in _telling(reports)]


def short_names_of(reports: Sequence[Reported], most: int = 48) -> list[str]:
    """The same for charts: of the longest parts the middle is left out, so that something of each is there."""
    return [", ".join(_shortened(parts, most)) for parts in _telling(reports)]


def _shortened(parts: tuple[str, ...], most: int) -> list[str]:
    """
    >>> _shortened(("robustbench:cifar10/Linf/Wong2020Fast", "full"), 24)
    ['robustbe…g2020Fast', 'full']
    """
    short = list(parts)
    while sum(map(len, short)) + 2 * (len(short) - 1) > most and max(map(len, short)) > 6:
        k = max(range(len(short)), key=lambda k: len(short[k]))
        short[k] = fitted(parts[k], len(short[k]) - 2)
    return short


def _telling(reports: Sequence[Reported]) -> list[tuple[str, ...]]:
    parts = [(one.model, one.result.spec.data, one.attack, one.threat) for one in reports]
    telling = [k for k, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    return [tuple(each[k] for k in telling) or each[:1] for each in parts]


def name_of(reported: Reported) -> str:
    """A run in a list of several."""
    return f"{reported.model}, {reported.attack}, {reported.threat}"
