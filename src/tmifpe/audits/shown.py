"""An audit as a table and as a figure."""

from __future__ import annotations

__all__ = ["audit_sheet", "plot_audit"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmifpe.core.shown.palette import FORMATS
from tmifpe.core.shown.sheet import Sheet, fitted, percent
from tmifpe.run.shown.plot import new_figure, plain_text

if TYPE_CHECKING:
    from tmifpe.audits.result import Audit


def audit_sheet(audit: Audit) -> Sheet:
    """For every loss and precision, the share of the correct examples that lose the label's component or everything."""
    head = ("loss", "precision", "label lost %", "gradient zero %", "input gradient zero %", "signs that differ %")
    rows = tuple(
        (
            found.loss,
            found.precision,
            percent(found.label_lost, 1),
            percent(found.logits.zero, 1),
            percent(found.input.zero, 1),
            percent(found.sign_disagreement, 1),
        )
        for found in audit.findings
    )
    return Sheet(f"{audit.model} on {audit.data}", head, rows, " ".join(audit.advice))


def plot_audit(audit: Audit) -> Any:
    """Two panels: the gaps and the thresholds of CE, and what each loss loses in each precision."""
    broad = max(6.7, 1.2 + 0.3 * len(audit.losses) * len(audit.precisions))  # inches, for the numbers on the bars
    figure = new_figure(5.3 + broad, 4.9)
    left, right = figure.subfigures(1, 2, width_ratios=[5.3, broad])
    _gaps(left, audit)
    _losses(right, audit)
    names = f"{fitted(Path(audit.model).name, 50)} on {fitted(audit.data, 40)}"
    figure.suptitle(f"{plain_text(names)}\n{int(audit.correct.sum())} correctly classified examples", fontsize=10)
    return figure


def _gaps(panel: Any, audit: Audit) -> None:
    axes = panel.add_subplot()
    gap = audit.delta[audit.correct]
    positive = gap[gap > 0]
    limits = audit.thresholds
    low = min(positive.min(initial=1.0), *limits.values()) / 1.2
    high = max(positive.max(initial=1.0), *limits.values()) * 1.2
    axes.hist(positive, bins=np.geomspace(low, high, 40).tolist(), color="#999999")
    axes.set_xscale("log")
    for name in limits:
        colour, style = FORMATS[name]
        share = float((gap >= limits[name]).mean())
        label = f"{name}: {limits[name]:.2f} ({100 * share:.0f} % above)"
        axes.axvline(limits[name], color=colour, linestyle=style, linewidth=1.8, label=label)
    panel.legend(ncols=2, fontsize=8, loc="outside lower center", frameon=False)
    axes.set_xlabel("gap Δ between the two largest logits (log scale)")
    axes.set_ylabel("examples")
    axes.yaxis.get_major_locator().set_params(integer=True)  # there is no half an example
    axes.set_ylim(bottom=0)
    axes.set_title("Gaps, and where CE loses its label (two classes)", fontsize=10)


def _losses(panel: Any, audit: Audit) -> None:
    """Pale bars: the label's component is gone; full bars: the whole gradient is."""
    axes = panel.add_subplot()
    places = np.arange(len(audit.losses))
    width = 0.8 / len(audit.precisions)
    for k, precision in enumerate(audit.precisions):
        colour, _ = FORMATS[precision]
        found = [audit.finding(loss, precision) for loss in audit.losses]
        at = places + (k - (len(audit.precisions) - 1) / 2) * width
        zero = [100 * max(f.logits.zero, f.input.zero) for f in found]
        lost = [max(100 * f.label_lost, z) for f, z in zip(found, zero, strict=True)]
        axes.bar(at, lost, width, color=colour, alpha=0.35)
        axes.bar(at, zero, width, color=colour, label=precision)
        for x, height in zip(at, lost, strict=True):
            text = f"{height:.0f}" if height >= 1 or height == 0 else "<1"
            axes.annotate(text, (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.bar([0], [0], color="#555555", label="full: the whole gradient is zero")
    axes.bar([0], [0], color="#555555", alpha=0.35, label="pale: only the label's component is")
    names = [plain_text(fitted(loss, 36)) for loss in audit.losses]
    if sum(map(len, names)) > 60 + 2 * len(names):  # side by side they would run into one another
        axes.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    else:
        axes.set_xticks(places, names)
    axes.set_ylim(0, 107)
    axes.set_ylabel("% of correctly classified examples")
    axes.set_title("Gradients lost to floating point", fontsize=10)
    axes.margins(x=0.02)
    look = {"fontsize": 8, "frameon": False, "columnspacing": 1.2, "handlelength": 1.2}
    panel.legend(loc="outside lower center", ncols=min(len(audit.precisions) + 2, 5), **look)
