"""An audit on disk: the whole of it as JSON, a CSV row per example, and a figure."""

from __future__ import annotations

__all__ = ["draw_audit", "prepare_folder", "write_audit"]

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmifpe.core.errors import InputError, MissingExtra, shorten
from tmifpe.report.palette import FORMATS

if TYPE_CHECKING:
    from tmifpe.audits.audit import Audit


def prepare_folder(folder: str | Path) -> Path:
    """Make the folder, and see that figures can be drawn: before the work, not after it."""
    _figure_class()
    try:
        target = Path(folder).expanduser()
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a null byte; RuntimeError: the home of nobody
        raise InputError(f"cannot make the folder {folder}: {error}") from error
    return target


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.json, audit.csv and audit.png into `folder` (made if need be); returns their paths."""
    target = prepare_folder(folder)
    plain, table, figure = (target / f"audit.{end}" for end in ("json", "csv", "png"))
    try:
        plain.write_text(json.dumps(audit.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        rows = list(audit.rows())
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        draw_audit(audit, figure)
    except OSError as error:
        raise InputError(f"cannot write the audit to {folder}: {error}") from error
    return [plain, table, figure]


def draw_audit(audit: Audit, path: str | Path) -> None:
    """Two panels: the gaps and the thresholds of CE, and what each loss loses in each precision."""
    # A Figure of its own, not pyplot's: no global state, no window.
    figure = _figure_class()(figsize=(12, 4.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.25])
    _gaps(left, audit)
    _losses(right, audit)
    names = shorten(f"{Path(audit.model).name} on {audit.data}", 90)
    figure.suptitle(f"{_title(names)}: {int(audit.correct.sum())} correctly classified examples")
    figure.savefig(path)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures", "plots") from error
    return Figure


def _title(name: str) -> str:
    """A name as matplotlib shows it: a dollar sign would begin a formula."""
    return "".join(c for c in name if c.isprintable()).replace("$", r"\$")


def _gaps(axes: Any, audit: Audit) -> None:
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
    axes.legend(ncols=2, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    axes.set_xlabel("gap Δ between the two largest logits (log scale)")
    axes.set_ylabel("examples")
    axes.yaxis.get_major_locator().set_params(integer=True)  # there is no half an example
    axes.set_ylim(bottom=0)
    axes.set_title("Gaps, and where CE loses its label (two classes)", fontsize=10)


def _losses(axes: Any, audit: Audit) -> None:
    """Pale bars: the label's component is gone; full bars: the whole gradient is."""
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
    axes.set_xticks(places, audit.losses)
    axes.set_ylim(0, 107)
    axes.set_ylabel("% of correctly classified examples")
    axes.set_title("Gradients lost to floating point", fontsize=10)
    columns = len(audit.precisions) + 2
    axes.legend(ncols=columns, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False,
                columnspacing=1.2, handlelength=1.2)  # fmt: skip
