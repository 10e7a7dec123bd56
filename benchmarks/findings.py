"""Our own measurements of what the paper claims: `python benchmarks/findings.py all`, then `... write`.

Each part writes docs/data/findings-PART.json; `write` makes docs/findings.md from these files, and a test checks that
it is up to date. The parts that use published weights need the folder that holds them in TMIFPE_SHARED.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from findings_text import render
from torch import Tensor, nn

import tmifpe
from tmifpe.core.stats import mcnemar
from tmifpe.core.types import Classifier, Data
from tmifpe.losses.catalogue import LOSSES
from tmifpe.losses.ce_margin import CEMargin
from tmifpe.losses.scaled import Temperature, chosen_t
from tmifpe.run.result import Result
from tmifpe.theory.solver import T_TWO, height, local_maxima, one_step_t, solve_t

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data"
TEXT = ROOT / "docs" / "findings.md"
N = 500  # images of every model
EPS = {"digits-robust": 0.15, "digits-distilled": 0.15, "mnist-fast": 0.3}
SCALES = (0.001, 0.01, 0.1, 0.5, 1.0, "exact", 2.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0)
SEEDS = (0, 1, 2)


def sources(*, cifar: bool = False) -> dict[str, tuple[Classifier, Data]]:
    """The bundled models on digits, and the published ones on the first images of their own test sets."""
    if "TMIFPE_SHARED" not in os.environ:
        sys.exit("set TMIFPE_SHARED to the folder with models/ and data/ (mnist_fast_at.pth, cifar10_resnet4b.onnx)")
    shared = Path(os.environ["TMIFPE_SHARED"])
    digits, mnist = tmifpe.load_data("digits", limit=N), tmifpe.load_data(f"mnist:{shared / 'data/mnist'}", limit=N)
    found: dict[str, tuple[Classifier, Data]] = {
        "digits-robust": (tmifpe.load_model("digits-robust"), digits),
        "digits-distilled": (tmifpe.load_model("digits-distilled"), digits),
        "mnist-fast": (tmifpe.load_model("mnist-fast", weights=shared / "models/mnist_fast_at.pth"), mnist),
    }
    if cifar:
        mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
        model = tmifpe.load_model(str(shared / "models/cifar10_resnet4b.onnx"), mean=mean, std=std)
        data = tmifpe.load_data(f"npz:{shared / 'data/cifar10/test_first_846.npz'}", limit=N)
        found["cifar10-resnet4b"] = (model, data)
    return found


def clean_ratios(model: Classifier, data: Data) -> tuple[Tensor, Tensor]:
    """d = (z_1 - z_i)/Delta of the correctly classified images in float64, top left out, and Delta."""
    x, labels = data.fetch(range(len(data)))
    with torch.no_grad():
        logits = torch.cat([model.module(part) for part in x.split(100)]).double()
    ordered = logits[logits.argmax(dim=1) == labels].sort(dim=1, descending=True).values
    gap = ordered[:, :1] - ordered[:, 1:2]
    return (ordered[:, :1] - ordered[:, 1:]) / gap, gap[:, 0]


# 1. Does t* minimise the real error? ------------------------------------------------------------------------------


def error_by_t() -> dict[str, Any]:
    """Errors of dL/dz and of the input gradient in float32, and what the paper's model predicts, at each scale t."""
    found: dict[str, Any] = {}
    for name, (model, data) in sources().items():
        forms = [f"{form}(t_rule={t})" for form in ("tmifpe-naive", "tmifpe") for t in SCALES]
        spelled = ["tmifpe-naive" if f == "tmifpe-naive(t_rule=exact)" else f for f in forms]
        spelled = ["tmifpe" if f == "tmifpe(t_rule=exact)" else f for f in spelled]
        audit = tmifpe.audit(model, data, [*spelled, "ce", "ce-margin"], ["fp32"])
        errors = {text: _errors(f) for text, f in zip([*forms, "ce", "ce-margin"], audit.findings, strict=True)}
        d, _ = clean_ratios(model, data)
        best = height(d, solve_t(d))
        scales = [solve_t(d) if t == "exact" else d.new_full((len(d),), float(t)) for t in SCALES]
        predicted = [float((best / height(d, t)).median()) for t in scales]
        found[name] = {"errors": errors, "predicted": dict(zip(map(str, SCALES), predicted, strict=True))}
        found[name]["examples"] = int(audit.correct.sum())
    return {"scales": [str(t) for t in SCALES], "models": found}


def _errors(finding: Any) -> dict[str, float]:
    sides = {"logits": finding.logits.error, "input": finding.input.error}
    return {f"{side}_{q}": getattr(error, q) for side, error in sides.items() for q in ("median", "p99")}


# 2. What does T-MIFPE gain, and from what? --------------------------------------------------------------------------


class ScaledMargin(CEMargin):
    """Margin-form cross-entropy of t* z/Delta, t* and Delta detached: `ce-margin` at the temperature of `tmifpe`."""

    name = "ce-margin-scaled"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            top = torch.topk(logits, 2, dim=1).values
            t = chosen_t(logits, labels, Temperature("exact", 100.0))
        return super().__call__(logits * (t / (top[:, 0] - top[:, 1]))[:, None], labels, targets)


class Cooled(nn.Module):
    """A model whose logits are divided by one constant."""

    def __init__(self, module: Any, temperature: float) -> None:
        super().__init__()
        self.module, self.temperature = module, temperature

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) / self.temperature


def gain() -> dict[str, Any]:
    """Robust accuracy by loss, 100 steps: which part of the gain is arithmetic and which is temperature?"""
    if ScaledMargin.name not in LOSSES:
        LOSSES.add(ScaledMargin.name, ScaledMargin, "ce-margin at the temperature of tmifpe")
    losses = ["ce", "ce-margin", "ce-margin-scaled", "tmifpe-naive", "mifpe", "tmifpe", "cw"]
    found: dict[str, Any] = {}
    for name, (model, data) in sources().items():
        threat = tmifpe.Threat("linf", EPS[name])
        row = tmifpe.compare(model, data, threat, losses, seeds=SEEDS)
        d, gap = clean_ratios(model, data)
        temperature = float((gap / solve_t(d)).median())
        cooled = tmifpe.compare(Cooled(model.module, temperature), data, threat, ["ce-margin"], seeds=SEEDS)
        results = {**row.results, "ce-margin-constant": cooled.results["ce-margin"]}
        found[name] = {
            "eps": EPS[name],
            "clean": row.clean_accuracy,
            "temperature": temperature,
            "losses": {loss: _against(runs, row.results["tmifpe"]) for loss, runs in results.items()},
            "ce_margin_against_ce": _against(results["ce-margin"], results["ce"]),
        }
    return {"n": N, "steps": 100, "seeds": list(SEEDS), "models": found}


def _against(runs: Sequence[Result], others: Sequence[Result]) -> dict[str, Any]:
    """Robust accuracy per seed, and the examples that only the one or only the other broke (McNemar's exact p)."""
    values = [run.robust_accuracy for run in runs]
    pairs = [mcnemar("", "", a.outcomes.fooled, b.outcomes.fooled) for a, b in zip(runs, others, strict=True)]
    return {
        "robust": values,
        "mean": sum(values) / len(values),
        "only_this": [pair.only_first for pair in pairs],
        "only_other": [pair.only_second for pair in pairs],
        "p": [pair.p for pair in pairs],
    }


# 3. and 4. One step against the exact t*; how often g has several maxima ----------------------------------------------


def gaussian(rows: int, classes: int, seed: int) -> Tensor:
    """Independent N(0, 1) logits."""
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def confident(rows: int, classes: int, seed: int) -> Tensor:
    """N(0, 1) rivals, and one class above the largest of them by an exponential gap of mean 2."""
    z = gaussian(rows, classes, seed)
    lift = torch.rand(rows, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    z[:, 0] = z[:, 1:].amax(dim=1) - 2.0 * torch.log1p(-lift)
    return z


def grouped(rows: int, classes: int, seed: int) -> Tensor:
    """N(0, 1) logits of which 2 to 6, classes easily confused, stand out from the rest by 0 to 12."""
    draw = torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed + 2), dtype=torch.float64)
    group = torch.arange(classes)[None] < 2 + (5 * draw[:, :1]).floor()
    return gaussian(rows, classes, seed) + 12.0 * draw[:, 1:] * group


FAMILIES: dict[str, Callable[[int, int, int], Tensor]] = {
    "gaussian": gaussian,
    "confident": confident,
    "grouped": grouped,
}


def ratios(logits: Tensor) -> Tensor:
    ordered = logits.sort(dim=1, descending=True).values
    return (ordered[:, :1] - ordered[:, 1:]) / (ordered[:, :1] - ordered[:, 1:2])


def one_step() -> dict[str, Any]:
    """g at the one-step t, at T = 1 and at the best constant for two classes, over g at the exact t*."""
    sets = {
        f"{family}, K = {k}": ratios(make(rows, k, 0))
        for family, make in FAMILIES.items()
        for k, rows in ((10, 20000), (100, 5000), (1000, 2000))
    }
    sets |= {f"{name}, K = 10": clean_ratios(*pair)[0] for name, pair in sources(cifar=True).items()}
    found: dict[str, Any] = {}
    for name, d in sets.items():
        best = height(d, solve_t(d))
        rules = {"one_step": one_step_t(d), "T1": torch.ones_like(best), "T1.2785": torch.full_like(best, T_TWO)}
        share = {rule: height(d, t) / best for rule, t in rules.items()}
        found[name] = {rule: {"mean": float(s.mean()), "min": float(s.min())} for rule, s in share.items()}
        found[name]["rows"] = len(d)
        found[name]["one_step_worse_than_T1"] = float((share["one_step"] < share["T1"]).double().mean())
    return {"sets": found}


def multimodal() -> dict[str, Any]:
    """Share of rows with more than one local maximum of g, and how much g one loses at most by climbing from t = 1."""
    found: dict[str, Any] = {}
    for family, make in FAMILIES.items():
        for k in (10, 13, 14, 20, 50, 100, 200, 500, 1000):
            rows = ratios(make(1000, k, 10))
            maxima = [local_maxima(d, points=512) for d in rows]
            lost = [_climb_loss(d, one) for d, one in zip(rows, maxima, strict=True) if len(one) > 1]
            found[f"{family}, K = {k}"] = {
                "rows": len(maxima),
                "several": len(lost) / len(maxima),
                "most_maxima": max(len(one) for one in maxima),
                "climb_loss": max(lost, default=0.0),
            }
    return {"sets": found}


def _climb_loss(d: Tensor, maxima: list[tuple[float, float]]) -> float:
    """1 - g/g_best at the maximum next to t = 1, uphill; `maxima` are (t, G), the highest first."""
    below, above = height(d[None], d.new_tensor([[1.0, 1.0 + 1e-6]]))[0].tolist()
    ahead = [(abs(t - 1.0), top) for t, top in maxima if (t > 1.0) == (above > below)]
    return 1.0 - min(ahead)[1] / maxima[0][1]


# 5. Audits of real models ---------------------------------------------------------------------------------------------


def audits() -> dict[str, Any]:
    """`tmifpe audit` on every model here."""
    found = {name: tmifpe.audit(*pair).to_json() for name, pair in sources(cifar=True).items()}
    for name, plain in found.items():
        plain["model"], plain["data"] = name, Path(plain["data"]).name
    return {"models": found}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "error-by-t": error_by_t,
    "gain": gain,
    "one-step": one_step,
    "multimodal": multimodal,
    "audits": audits,
}


def rounded(value: Any) -> Any:
    """Six significant digits are plenty, and keep the files readable."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def read() -> dict[str, Any]:
    return {part: json.loads((DATA / f"findings-{part}.json").read_text(encoding="utf-8")) for part in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=[*PARTS, "all", "write"])
    part = parser.parse_args().part
    for name in PARTS if part == "all" else [] if part == "write" else [part]:
        print(f"measuring {name} ...", file=sys.stderr)
        DATA.mkdir(parents=True, exist_ok=True)
        stamp = {"command": f"python benchmarks/findings.py {name}", "torch": torch.__version__.partition("+")[0]}
        text = json.dumps(rounded(stamp | PARTS[name]()), indent=1, ensure_ascii=False)
        (DATA / f"findings-{name}.json").write_text(text + "\n", encoding="utf-8")
    if part in ("all", "write"):
        TEXT.write_text(render(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
