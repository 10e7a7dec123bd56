"""docs/findings.md, made from the numbers in docs/data/findings-*.json and from nothing else."""

from __future__ import annotations

__all__ = ["render"]

import textwrap
from typing import Any

NAMES = {
    "ce": "`ce`",
    "ce-margin": "`ce-margin`",
    "ce-margin-scaled": "`ce-margin` of t\\* z/Δ",
    "tmifpe-naive": "`tmifpe-naive`, as printed",
    "mifpe": "`mifpe` (T = 1)",
    "tmifpe": "`tmifpe`",
    "cw": "`cw`",
    "ce-margin-constant": "`ce-margin` of z/τ",
}


def render(data: dict[str, Any]) -> str:
    """The whole page, paragraphs wrapped; tables, headings and comments as they are."""
    parts = (_head(), _short(data), _error(data["error-by-t"]), _gain(data["gain"]), _one_step(data["one-step"]),
             _multimodal(data["multimodal"]), _audits(data["audits"]))  # fmt: skip
    blocks = "\n".join(parts).strip().split("\n\n")
    return "\n\n".join(_wrapped(block.strip("\n")) for block in blocks) + "\n"


def _wrapped(block: str) -> str:
    if block.startswith(("|", "#", "<!--", "`python")):
        return block
    if not block.startswith("* "):
        return textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
    points = block.removeprefix("* ").split("\n* ")
    return "\n".join(
        textwrap.fill(
            point, 120, initial_indent="* ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for point in points
    )


def _head() -> str:
    return """
<!-- Made by `python benchmarks/findings.py write` from docs/data/findings-*.json; edit benchmarks/findings_text.py. -->
# Findings

What we measured about the paper's claims, on the bundled models and on two published ones, on a CPU. Every number
below comes from a file in [data](data), and every section names the command that makes it; the commands need the
published weights, in the folder that `TMIFPE_SHARED` names. `python benchmarks/findings.py all` measures everything and
writes this page.

Models: `digits-robust` and `digits-distilled` (bundled), `mnist-fast` (MNIST, Fast adversarial training) and
`cifar10-resnet4b` (CIFAR-10, ONNX). They are small and have ten classes, and the attacks are in Linf: larger models may
differ.
"""


def _short(data: dict[str, Any]) -> str:
    errors, sets, gain = data["error-by-t"]["models"]["digits-robust"], data["one-step"]["sets"], data["gain"]["models"]
    low, best = (errors["errors"][f"tmifpe-naive(t_rule={t})"]["logits_p99"] for t in ("0.001", "exact"))
    runs = len(gain) * len(data["gain"]["seeds"])
    distilled = {loss: _pct(found["mean"]) for loss, found in gain["digits-distilled"]["losses"].items()}
    against = ", ".join(
        f"{_pct(m['losses']['tmifpe']['mean'])} against {_pct(m['losses']['mifpe']['mean'])} (`{name}`)"
        for name, m in gain.items()
    )
    p = min(p for m in gain.values() for p in m["losses"]["mifpe"]["p"])
    confident = [sets[f"confident, K = {k}"] for k in (10, 100, 1000)]
    one, fixed = (" / ".join(_share(found[rule]["mean"]) for found in confident) for rule in ("one_step", "T1"))
    return f"""
## In short

* **t\\* does not minimise the rounding error.** Every t up to about 2 is as accurate as t\\*. At t = 0.001 the paper's
error model predicts {errors["predicted"]["0.001"]:.0f} times the error of t\\* on `digits-robust`; the measured
errors are {low:.1e} there and {best:.1e} at t\\*.
* **T-MIFPE gains from temperature, not from accuracy.** In {runs} runs, `ce-margin` at the temperature of `tmifpe`
and the
printed formula with all its rounding differ from `tmifpe` in {_differ(gain, "ce-margin-scaled")} and
{_differ(gain, "tmifpe-naive")} verdicts. Likewise, `ce` and its form without cancellation, `ce-margin`, differ in
{_differ_from_ce(gain)}, although `ce` loses many digits (section 5).
* **Underflow is real, and any scaling cures most of it.** On `digits-distilled`, whose gaps are in the hundreds,
`ce` and
`ce-margin` report {distilled["ce"]} and {distilled["ce-margin"]} robust accuracy, one constant temperature
{distilled["ce-margin-constant"]}, `tmifpe` {distilled["tmifpe"]}.
* **`tmifpe` and `mifpe` cannot be told apart here**: {against}; the smallest p-value over all models and seeds is
{p:.2f}.
* **The one-step formula is no substitute for solving for t\\*.** On confident logits its mean g is {one} of the best
for
K = 10 / 100 / 1000; a constant T = 1 reaches {fixed}.
"""


def _error(part: dict[str, Any]) -> str:
    tables = "\n\n".join(_error_table(name, model, part["scales"]) for name, model in part["models"].items())
    return f"""
## 1. Does t\\* minimise the real error?

Relative error of the gradient in float32, 99th percentile over the correctly classified images, against the scale t in
CE(t z/Δ). "Printed" is F.cross_entropy of t z/Δ (`tmifpe-naive`); "ours" shifts first and never forms 1 − p (`tmifpe`).
"By logits" counts the loss's own arithmetic only, "by input" the network's as well. "Predicted" is the error
relative to
t\\* under the paper's model, the median of g(t\\*)/g(t).

{tables}

No. For t ≤ 2 the error of the printed formula is flat, at a few units in the last place, and then it grows like e^t:
this is the cancellation in 1 − p. Below t\\* the paper's model, in which rounding is an absolute error that a larger c
outweighs, predicts an error that does not occur, since multiplying by c adds only a relative error. In our form the
error stays at the level of float32 rounding for every t here, so t can be chosen as what it really is, a temperature.
The form also matters without scaling: `ce-margin` is about as accurate as the scaled losses wherever e^−Δ has not
underflowed;
where it has (`digits-distilled`) only scaling helps.

`python benchmarks/findings.py error-by-t` → [findings-error-by-t.json](data/findings-error-by-t.json)
"""


def _error_table(name: str, model: dict[str, Any], scales: list[str]) -> str:
    rows = [
        ["t", "printed, by logits", "printed, by input", "ours, by logits", "ours, by input", "predicted"],
        ["---"] * 6,
    ]
    for t in scales:
        naive, ours = (model["errors"][f"{form}(t_rule={t})"] for form in ("tmifpe-naive", "tmifpe"))
        rows.append(
            [
                "t\\*" if t == "exact" else t.removesuffix(".0"),
                *(_e(found[f"{side}_p99"]) for found in (naive, ours) for side in ("logits", "input")),
                f"{model['predicted'][t]:.3g}",
            ]
        )
    for loss, before, after in (("ce", 0, 2), ("ce-margin", 2, 0)):
        pair = [_e(model["errors"][loss][f"{side}_p99"]) for side in ("logits", "input")]
        rows.append([f"unscaled: `{loss}`", *["–"] * before, *pair, *["–"] * after, "–"])
    return f"`{name}`, {model['examples']} images:\n\n" + _table(rows)


def _gain(part: dict[str, Any]) -> str:
    models = part["models"]
    rows = [["loss"], ["---"] * (1 + 2 * len(models))]
    for name, model in models.items():
        rows[0] += [f"{name}, eps {model['eps']}", "it : `tmifpe`"]
    for loss, name in NAMES.items():
        found = [model["losses"][loss] for model in models.values()]
        rows.append([name, *(cell for one in found for cell in (_range(one), _discordant(one, loss)))])
    taus = ", ".join(f"{m['temperature']:.3g} (`{name}`)" for name, m in models.items())
    clear = {loss: [n for n, m in models.items() if max(m["losses"][loss]["p"]) < 0.05] for loss in NAMES}
    leads = [_ahead(name, model["losses"]["mifpe"], part["n"]) for name, model in models.items()]
    ahead = " ".join(lead for lead in leads if lead)
    beaten = "; ".join(f"{NAMES[loss]} ({', '.join(on)})" for loss, on in clear.items() if on)
    return f"""
## 2. What does T-MIFPE gain, and from what?

Robust accuracy under PGD with {part["steps"]} steps, the paper's protocol, on the first {part["n"]} images: mean and
range
over seeds {", ".join(map(str, part["seeds"]))}. A lower value means a stronger attack. The next column gives, for
each seed,
how many examples only this loss and only `tmifpe` broke. τ, one constant per model, is the median of Δ/t\\* on the
clean images: {taus}.

{_table(rows)}

At 5 % and for every seed (McNemar's exact test), these differ from `tmifpe`: {beaten}. All other differences may be
chance.

* At equal temperature no difference remains: `ce-margin` of t\\* z/Δ, and even the printed formula, break exactly the
examples that `tmifpe` breaks. Careful arithmetic pays at extreme gaps and at ties, which these images do not reach.
* `ce` and `ce-margin` agree with each other example by example. So the digits that `ce` loses on the two robust models
change no verdict; what separates both from `tmifpe` there is temperature, and it is within chance.
* One temperature for all examples is worse than none on the robust models. The reason is presumably that Δ shrinks
as an image
nears the boundary, so that z/τ gets ever softer; dividing by the example's own Δ at every step avoids this.
* Between T = 1 and t\\* no test here finds a difference. {ahead}
* On `digits-distilled` the gain is large and is due to floating point: e^−Δ underflows in `ce` and in `ce-margin`
alike.
A constant temperature recovers most of it, the temperature per example the rest.

`python benchmarks/findings.py gain` → [findings-gain.json](data/findings-gain.json)
"""


def _one_step(part: dict[str, Any]) -> str:
    sets, rules = part["sets"], ("one_step", "T1", "T1.2785")
    rows = [
        ["logits", "rows", "one-step", "T = 1", "T = 1.2785", "one-step worse than T = 1"],
        ["---"] * 6,
        *(
            [
                name,
                str(found["rows"]),
                *(f"{_share(found[rule]['mean'])} / {_share(found[rule]['min'])}" for rule in rules),
                _pct(found["one_step_worse_than_T1"], 0),
            ]
            for name, found in sets.items()
        ),
    ]
    beats = sum(found["T1.2785"]["mean"] > found["one_step"]["mean"] for found in sets.values())
    return f"""
## 3. One step against the exact t\\*

The paper prints t\\* as a closed form; it is an implicit equation. Evaluated once, at t = 1 ("one-step"), it gives a t
whose g is the following fraction of the best (mean / smallest):

{_table(rows)}

Gaussian: independent N(0, 1). Confident: N(0, 1) rivals and a top class above them by an exponential gap of mean 2.
Grouped: 2 to 6 classes stand out by 0 to 12. The last rows are clean, correctly classified images of real models.

The one-step value is about as good as T = 1 for ten classes and unsafe for a hundred or more, where it can overshoot so
far that g vanishes. The constant 1.2785, t\\* for two classes, has the larger mean on {beats} of the {len(sets)}
sets. g is only the paper's measure, though: it is not the error (section 1), and as attacks T = 1 and t\\* cannot be
told apart (section 2).

`python benchmarks/findings.py one-step` → [findings-one-step.json](data/findings-one-step.json)
"""


def _multimodal(part: dict[str, Any]) -> str:
    families: dict[str, dict[str, Any]] = {}
    for name, found in part["sets"].items():
        family, _, k = name.partition(", K = ")
        families.setdefault(family, {})[k] = found
    rows = [["K"], ["---"] * (1 + 2 * len(families))]
    for family in families:
        rows[0] += [family, "costs up to"]
    for k in next(iter(families.values())):
        found = [by_size[k] for by_size in families.values()]
        rows.append([k, *(cell for one in found for cell in (_pct(one["several"]), _cost(one)))])
    most = max(found["most_maxima"] for found in part["sets"].values())
    often = {family: _pct(by_size["1000"]["several"]) for family, by_size in families.items()}
    count = next(iter(part["sets"].values()))["rows"]
    return f"""
## 4. How often does g have several maxima?

Share of {count} rows with more than one local maximum, and the largest fraction of g lost by ascending from t = 1
to the nearest one (logits as in section 3):

{_table(rows)}

Never with up to 13 classes (a theorem). With a thousand, in {often["gaussian"]} of the rows of Gaussian logits, and in
{often["grouped"]} where a few classes stand out from the rest; one may expect this of trained models, but we have
not measured it on any. No row here had more than {most}. Where it happens it matters: the nearest maximum can
fall well short of the best g. Our solver compares them all.

`python benchmarks/findings.py multimodal` → [findings-multimodal.json](data/findings-multimodal.json)
"""


def _audits(part: dict[str, Any]) -> str:
    rows = [
        ["model", "precision", "loss", "zero", "label lost", "error by logits", "error by input", "wrong signs"],
        ["---"] * 8,
    ]
    for name, plain in part["models"].items():
        for f in plain["findings"]:
            if f["loss"] in ("ce", "ce-margin", "tmifpe"):
                zero = max(f["logits"]["zero"], f["input"]["zero"])
                errors = [_e(f[side]["error"]["p99"]) for side in ("logits", "input")]
                lost, signs = _pct(f["label_lost"]), _pct(f["sign_disagreement"])
                rows.append([name, f["precision"], f"`{f['loss']}`", _pct(zero), lost, *errors, signs])
    gaps = "\n".join(
        f"* `{name}`: median Δ {plain['delta']['median']:.3g}, largest {plain['delta']['max']:.3g}; "
        + ", ".join(f"{_pct(at['share_above'], 0)} above {at['delta']:.2f} ({p})" for p, at in plain["ce_dies"].items())
        for name, plain in part["models"].items()
    )
    return f"""
## 5. Audits

`tmifpe audit` on clean images, restricted to correctly classified ones: the share whose gradient is exactly zero, the
share whose label component is zero, the relative error by logits (the loss's own arithmetic) and by input (with the
network's), 99th percentiles, and the share of pixels whose sign differs from that in float64.

{_table(rows)}

The gaps, and the thresholds at which CE loses its label:

{gaps}

In half precision plain `ce` loses its label on some images of every model here. `ce-margin` repairs that in bfloat16
and float32; in float16 it runs short of exponent (zeros on `digits-robust`, wrong signs on `mnist-fast`), and on
`digits-distilled` it underflows in every format. `tmifpe` keeps a gradient on every image; the errors that remain
in half precision are rounding inside the network.

`python benchmarks/findings.py audits` → [findings-audits.json](data/findings-audits.json)
"""


def _table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _e(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _pct(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _share(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 else f"{value:.0e}"


def _cost(found: dict[str, Any]) -> str:
    return _pct(found["climb_loss"]) if found["several"] else "–"


def _range(found: dict[str, Any]) -> str:
    low, high = 100 * min(found["robust"]), 100 * max(found["robust"])
    return f"{_pct(found['mean'])} ({low:.1f} to {high:.1f})"


def _discordant(found: dict[str, Any], loss: str) -> str:
    pairs = zip(found["only_this"], found["only_other"], strict=True)
    return "–" if loss == "tmifpe" else ", ".join(f"{a}:{b}" for a, b in pairs)


def _ahead(name: str, found: dict[str, Any], n: int) -> str:
    """A sentence where `tmifpe` leads on every seed, though not by more than chance."""
    lead = [b - a for a, b in zip(found["only_this"], found["only_other"], strict=True)]
    if min(lead) <= 0:
        return ""
    span = str(lead[0]) if min(lead) == max(lead) else f"{min(lead)} to {max(lead)}"
    return f"On `{name}` t\\* is ahead on every seed, by {span} of {n} images: a larger test might show one."


def _differ(gain: dict[str, Any], loss: str) -> int:
    """Verdicts that differ from those of `tmifpe`, over all models and seeds."""
    return sum(sum(m["losses"][loss]["only_this"]) + sum(m["losses"][loss]["only_other"]) for m in gain.values())


def _differ_from_ce(gain: dict[str, Any]) -> int:
    return sum(sum(m["ce_margin_against_ce"][side]) for m in gain.values() for side in ("only_this", "only_other"))
