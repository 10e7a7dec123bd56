"""What an audit found: example by example, summed up, and in words."""

from __future__ import annotations

__all__ = ["Audit", "Cell"]

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.audits.advice import advice, layer_advice
from tmifpe.audits.gradient_errors import Finding, Flags, GradientErrors, Reals, summarise
from tmifpe.audits.shown import audit_sheet, plot_audit
from tmifpe.core.errors import InputError, shorten
from tmifpe.core.extras import import_extra
from tmifpe.core.shown.formats import sheet_html, sheet_latex, sheet_markdown
from tmifpe.run.shown.plot import save_figure
from tmifpe.theory.formats import format_of
from tmifpe.version import __version__


@dataclass(frozen=True)
class Cell:
    """One loss in one precision, example by example: both gradients, and whether the label's component is gone."""

    loss: str
    precision: str
    logits: GradientErrors
    input: GradientErrors
    label_lost: Flags

    def finding(self, rows: Flags) -> Finding:
        return Finding(
            self.loss,
            self.precision,
            label_lost=float(self.label_lost[rows].mean()),
            sign_disagreement=float(self.input.signs[rows].mean()),
            logits=summarise(self.logits, rows),
            input=summarise(self.input, rows),
        )


@dataclass(frozen=True)
class Audit:
    """The gradients of every loss in every precision against float64. Shares and quantiles are over the correctly
    classified examples, the only ones that are attacked; `rows` has them all."""

    model: str
    data: str
    classes: int
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    correct: Flags
    """Classified correctly in float64."""
    delta: Reals
    """The gap between the two largest logits, float64."""
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    """For the float64 reference and each precision, what ran in it or was emulated; whether the model is random."""
    randomised: bool = False
    """Whether the model gave other logits on a second reading."""
    layers: tuple[LayerGradient, ...] = ()
    """What becomes of the gradient at every module, on a few images, in the model's own precision."""

    @property
    def n(self) -> int:
        return len(self.index)

    @property
    def precisions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.precision for cell in self.cells))

    @property
    def losses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.loss for cell in self.cells))

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(cell.finding(self.correct) for cell in self.cells)

    @property
    def advice(self) -> tuple[str, ...]:
        """What the findings mean, in sentences."""
        return (*advice(self.findings, self.randomised), *layer_advice(self.layers))

    @property
    def thresholds(self) -> dict[str, float]:
        """The gap from which 1 - p_1 of plain cross-entropy rounds to 0 (two classes): p ln 2 for p-bit numbers."""
        return {name: format_of(name).ce_dies for name in self.precisions}

    def finding(self, loss: str, precision: str) -> Finding:
        """What one loss loses in one precision."""
        for cell in self.cells:
            if (cell.loss, cell.precision) == (loss, precision):
                return cell.finding(self.correct)
        raise InputError(f"{loss} in {precision} was not audited; there are {self.losses} in {self.precisions}")

    def to_json(self) -> dict[str, Any]:
        gap = self.delta[self.correct]
        finite = gap[np.isfinite(gap)] if np.isfinite(gap).any() else np.array([np.nan])
        quantiles = zip(("min", "p10", "median", "p90", "max"), np.quantile(finite, [0, 0.1, 0.5, 0.9, 1]), strict=True)
        return {
            "model": self.model,
            "data": self.data,
            "n": self.n,
            "correct": int(self.correct.sum()),
            "classes": self.classes,
            "delta": {name: None if np.isnan(value) else float(value) for name, value in quantiles},
            "ce_dies": {
                name: {"delta": limit, "share_above": float((gap >= limit).mean())}
                for name, limit in self.thresholds.items()
            },
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "randomised": self.randomised,
            "verdicts": list(self.advice),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "notes": list(self.notes),
            "version": __version__,
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per example, loss and precision."""
        for cell in self.cells:
            for i in range(self.n):
                yield {
                    "index": int(self.index[i]),
                    "label": int(self.label[i]),
                    "correct": bool(self.correct[i]),
                    "delta": float(self.delta[i]) if np.isfinite(self.delta[i]) else None,
                    "loss": cell.loss,
                    "precision": cell.precision,
                    "label_lost": bool(cell.label_lost[i]),
                    **_row("logits", cell.logits, i),
                    **_row("input", cell.input, i),
                }

    def to_markdown(self) -> str:
        """What every loss loses in every precision in Markdown."""
        return sheet_markdown(audit_sheet(self))

    def to_latex(self) -> str:
        """The same in LaTeX: a `tabular`, without packages."""
        return sheet_latex(audit_sheet(self))

    def _repr_html_(self) -> str:
        return sheet_html(audit_sheet(self))

    def to_pandas(self) -> Any:
        """One row per example, loss and precision as a DataFrame (extra `pandas`); see `rows`."""
        pandas: Any = import_extra("pandas", "tables of audits", "pandas")
        return pandas.DataFrame(self.rows())

    def plot(self, path: str | Path | None = None) -> Any:
        """The gaps with the thresholds of CE, and what each loss loses. Returns a matplotlib figure (extra `plots`).

        It is also written to `path` if one is given.
        """
        return save_figure(plot_audit(self), path)

    def __repr__(self) -> str:
        measured = f"{', '.join(self.losses)} in {', '.join(self.precisions)}"
        return f"<Audit of {shorten(f'{self.model} on {self.data}, n = {self.n}: {measured}', 250)}>"

    def __str__(self) -> str:
        return "\n".join(self.advice)


def _row(side: str, errors: GradientErrors, i: int) -> dict[str, Any]:
    values = {field.name: getattr(errors, field.name)[i].item() for field in dataclasses.fields(errors)}
    return {f"{side}_{name}": None if _is_nan(value) else value for name, value in values.items()}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
