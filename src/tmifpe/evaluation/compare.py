"""One model under several losses: a row of the paper's Table 1, with the differences that are more than chance."""

from __future__ import annotations

__all__ = ["Comparison", "compare"]

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from tmifpe.attacks import PGD
from tmifpe.core.errors import InputError, shorten
from tmifpe.core.extras import import_extra
from tmifpe.core.options import split_list
from tmifpe.core.shown.formats import sheet_html, sheet_latex, sheet_markdown
from tmifpe.core.stats import PairedTest, holm, mcnemar, wilson
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.evaluation.prepare import prepare
from tmifpe.evaluation.shown import comparison_sheet, plot_comparison
from tmifpe.run.bar import AnyProgress
from tmifpe.run.request import Request, SharedOptions, require_threat
from tmifpe.run.resolve import AnyColumn, column_name, resolve_attack
from tmifpe.run.result import Result
from tmifpe.run.shown.plot import save_figure
from tmifpe.run.shown.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

LOSSES = ("ce", "ce-margin", "cw", "dlr", "mifpe", "tmifpe")


@dataclass(frozen=True)
class Comparison:
    """The results of every loss, one per seed, on the same examples."""

    results: dict[str, tuple[Result, ...]]
    seeds: tuple[int, ...]

    @property
    def clean_accuracy(self) -> float:
        return next(iter(self.results.values()))[0].clean_accuracy

    def accuracies(self, loss: str) -> list[float]:
        return [result.robust_accuracy for result in self.results[loss]]

    def mean(self, loss: str) -> float:
        return float(np.mean(self.accuracies(loss)))

    def interval(self, loss: str) -> tuple[float, float]:
        """Wilson's at the mean: how far the draw of images may have moved it; what seeds do is in min and max."""
        n = self.results[loss][0].n
        return wilson(self.mean(loss) * n, n)

    @property
    def spread(self) -> float | None:
        """How far the seed alone moves a loss, at most: the largest max - min over seeds; None for a single seed."""
        several = [values for loss in self.results if len(values := self.accuracies(loss)) > 1]
        return max(max(values) - min(values) for values in several) if several else None

    def worst_case(self, loss: str) -> float:
        """Robust accuracy against the union of all seeds: an example counts only if no seed broke it."""
        results = self.results[loss]
        robust = np.logical_and.reduce([r.outcomes.robust & r.outcomes.counted for r in results])
        return float(robust.sum() / results[0].n) if results[0].n else 0.0

    def pairs(self) -> list[PairedTest]:
        """McNemar's exact test for every pair of losses, at the first seed, corrected for their number."""
        broken = {loss: runs[0].outcomes.fooled for loss, runs in self.results.items()}
        return holm([mcnemar(a, b, broken[a], broken[b]) for a, b in itertools.combinations(broken, 2)])

    def __repr__(self) -> str:
        means = ", ".join(f"{loss} {self.mean(loss):.2%}" for loss in self.results)
        seeds = ", ".join(map(str, self.seeds))
        return f"<Comparison robust accuracy {shorten(means, 250)}; clean {self.clean_accuracy:.2%}; seeds {seeds}>"

    def to_markdown(self) -> str:
        """A line per loss in Markdown."""
        return sheet_markdown(comparison_sheet(self))

    def to_latex(self) -> str:
        """The same in LaTeX: a `tabular`, without packages."""
        return sheet_latex(comparison_sheet(self))

    def _repr_html_(self) -> str:
        return sheet_html(comparison_sheet(self))

    def plot(self, path: str | Path | None = None) -> Any:
        """A bar per loss with its interval. Returns a matplotlib figure (extra `plots`).

        It is also written to `path` if one is given.
        """
        return save_figure(plot_comparison(self), path)

    def to_pandas(self) -> Any:
        """One row per loss and seed as a DataFrame (extra `pandas`): the accuracies, their interval, and the cost.

        The rows of the examples are in `results[loss][0].to_pandas()`.
        """
        pandas: Any = import_extra("pandas", "tables of comparisons", "pandas")
        return pandas.DataFrame(
            {
                "loss": loss,
                "seed": run.spec.seed,
                "robust_accuracy": run.robust_accuracy,
                "low": run.interval[0],
                "high": run.interval[1],
                "clean_accuracy": run.clean_accuracy,
                "n": run.n,
                "broken": run.broken,
                "seconds": run.seconds,
                "forwards": run.tally.forwards,
                "backwards": run.tally.backwards,
            }
            for loss, runs in self.results.items()
            for run in runs
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "clean_accuracy": self.clean_accuracy,
            "seeds": list(self.seeds),
            "spread": self.spread,
            "losses": {loss: self._row(loss) for loss in self.results},
            "pairs": [vars(pair) | {"differs": pair.differs} for pair in self.pairs()],
        }

    def _row(self, loss: str) -> dict[str, Any]:
        values = self.accuracies(loss)
        first = self.results[loss][0]
        return first.to_json() | {
            "flags": [asdict(flag) for flag in {f.name: f for run in self.results[loss] for f in run.flags}.values()],
            "robust_accuracies": values,
            "mean": self.mean(loss),
            "mean_interval": list(self.interval(loss)),
            "min": min(values),
            "max": max(values),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "worst_case": self.worst_case(loss),
            "worst_case_interval": list(wilson(round(self.worst_case(loss) * first.n), first.n)),
        }


@torch.inference_mode(False)  # an attack needs gradients, wherever it is called
def compare(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    losses: str | Sequence[AnyColumn] = LOSSES,
    attack: PGD = PGD(),  # noqa: B008 - frozen
    *,
    seeds: Sequence[int] = (0,),
    progress: bool | Callable[[str, Progress], None] | None = None,
    **options: Unpack[SharedOptions],
) -> Comparison:
    """Evaluate `model` under every loss and seed, with everything else equal.

    losses: names of losses, which `attack` climbs, or of attacks (`gama`, `autoattack`, `ce+gama`), as a list or as
        text with commas between them, as the command line has it; see
        `resolve_attack`. Loss functions and classes, and attacks, stand for their spelling. AutoAttack costs as much as
        dozens of them, and is measured at the first seed only.
    progress: True for a bar on stderr, or a function of the loss and a `Progress`.
    options: those of `evaluate`, `store` and `fresh` among them; see `SharedOptions`.

    >>> import tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=16)
    >>> row = tmifpe.compare(model, data, tmifpe.Threat("linf", 0.1), ["ce", "tmifpe"], tmifpe.PGD(steps=5))
    >>> sorted(row.results)
    ['ce', 'tmifpe']
    """
    require_threat(threat, "compare", data)
    names = [column_name(column) for column in (split_list(losses) if isinstance(losses, str) else losses)]
    if not names or len(set(names)) != len(names):
        raise InputError(f"compare needs different losses, at least one, got {', '.join(names) or 'none'}")
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"compare needs different seeds, at least one, got {list(seeds)}")
    if "seed" in options:
        raise InputError("compare takes seeds=(0, 1, ...), not seed=")
    request = Request.of(cast("dict[str, Any]", options), "compare")
    if request.targets == "random" and len(seeds) > 1:
        raise InputError(
            "with several seeds, random targets differ from seed to seed, so that their results cannot be compared; "
            "give one seed, or the targets themselves"
        )
    attacks = {loss: resolve_attack(loss, attack) for loss in names}
    for one in attacks.values():  # what cannot work fails before any compute
        one.check(threat, targeted=request.targets is not None, eot=request.eot)
    results: dict[str, tuple[Result, ...]] = {}
    with prepare(model, data, threat, request) as prepared:
        prepared.share_clean_logits()
        for loss, one in attacks.items():
            results[loss] = tuple(
                prepared.run(one, seed=seed, progress=_told(progress, loss), title=loss)
                for seed in (seeds[:1] if one.costly else seeds)
            )
    return Comparison(_flagged_alike(results), tuple(seeds))


_OF_SURVIVORS = ("found-from-outside", "spot-check", "transfer-failure")
"""Flags for survivors that another attack breaks: a column in which they all survive too is as doubtful."""


def _flagged_alike(results: dict[str, tuple[Result, ...]]) -> dict[str, tuple[Result, ...]]:
    """Checks look at a few survivors of each run, with its own loss: what they find of one holds for every other in
    which the same examples stand."""
    runs = [(loss, run, run.outcomes.robust & run.outcomes.counted) for loss, each in results.items() for run in each]

    def flagged(run: Result) -> Result:
        here, flags = run.outcomes.robust & run.outcomes.counted, {flag.name: flag for flag in run.flags}
        for loss, other, stood in runs:
            if stood.any() and not (stood & ~here).any():
                for flag in other.flags:
                    if flag.name in _OF_SURVIVORS and flag.name not in flags:
                        seen = f"Seen with {loss}, whose survivors stand here too: {flag.seen}"
                        flags[flag.name] = replace(flag, seen=seen)
        return replace(run, flags=tuple(flags.values()))

    return {loss: tuple(map(flagged, each)) for loss, each in results.items()}


def _told(progress: bool | Callable[[str, Progress], None] | None, loss: str) -> AnyProgress:
    """What one run is given to report to."""
    return (lambda step: progress(loss, step)) if callable(progress) else progress
