"""What an audit means, in plain words."""

from __future__ import annotations

__all__ = ["advice", "layer_advice", "percent"]

from collections.abc import Sequence
from dataclasses import replace

from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.audits.gradient_errors import Finding, Quantiles, Side

# Which loss to name first as a way out, of those that are sound.
_ADVISED = ("tmifpe", "ce-margin", "mifpe", "cw", "dlr")
_NOTHING = Quantiles(None, None, None, None)
_NOTHING_LOST = Side(zero=0.0, flat=0.0, nonfinite=0.0, error=_NOTHING, direction=_NOTHING)
_WHO = "of your correctly classified examples"
_NETWORK_ERRS = 0.005  # share of pixels with the wrong sign, under the best loss, from which it is worth a sentence
_WORSE = 0.05  # a loss with so many more wrong signs than the best one is not advised


def percent(share: float) -> str:
    """A share for reading: whole percents, but never 0 or 100 for what is not.

    >>> percent(0.423), percent(0.0012), percent(0.9996), percent(1.0), percent(1e-9)
    ('42 %', '0.1 %', '99.9 %', '100 %', 'less than 0.1 %')
    """
    if 0 < share < 0.0005:
        return "less than 0.1 %"
    if 0 < share < 0.01:
        return f"{100 * share:.1f} %"
    if 0.99 < share < 1:
        return f"{min(100 * share, 99.9):.1f} %"
    return f"{100 * share:.0f} %"


def advice(findings: Sequence[Finding], randomised: bool = False) -> tuple[str, ...]:
    """Sentences on every precision in turn: what dies, what to use, and what is the network's own doing.

    A randomised model has other logits in float64 than in the precision, so that of the gradient by the input nothing
    can be said, and only the arithmetic of the losses is looked at.
    """
    said: list[str] = []
    if randomised:
        findings = [replace(f, sign_disagreement=0.0, input=_NOTHING_LOST) for f in findings]
        said.append(
            "The model gives other logits each time it is asked: what follows is about the arithmetic of the losses at "
            "the logits of one draw; its gradients by the input differ by its own noise, which is not judged here."
        )
    for precision in dict.fromkeys(finding.precision for finding in findings):
        here = [finding for finding in findings if finding.precision == precision]
        said += _flat(here) if precision == findings[0].precision else []
        if all(f.logits.nonfinite == 1 for f in here):
            said.append(f"In {precision} every example has NaN or infinite logits: the network itself overflows.")
            continue
        said += _troubles(here, precision)
        flat = min(finding.input.flat for finding in here)
        if all(finding.sound for finding in here) and flat < 1:
            said.append(_all_sound(here, precision, flat))
        said += _signs(here, precision)
    return tuple(said)


def layer_advice(layers: Sequence[LayerGradient]) -> tuple[str, ...]:
    """A sentence on every module in which the gradient dies, whatever the loss."""
    return tuple(
        f"The gradient dies in {layer}{' between its modules' if layer.own else ''}: {percent(_lost(layer))} of the "
        "images looked at have no usable one in front of it; no loss helps, "
        + ("make those calls a module of their own." if layer.own else f'but `straight_through="{layer.name}"` may.')
        for layer in layers
        if layer.dies
    )


def _lost(layer: LayerGradient) -> float:
    return layer.none + layer.faint + layer.shattered


def _flat(here: list[Finding]) -> list[str]:
    share = min(finding.input.flat for finding in here)
    if share == 0:
        return []
    return [f"For {percent(share)} {_WHO} the network has no gradient in float64 either: no loss helps there."]


def _troubles(here: list[Finding], precision: str) -> list[str]:
    instead = _way_out(here)
    said: list[str] = []
    bad_logits = min(finding.logits.nonfinite for finding in here)
    if bad_logits:
        said.append(f"In {precision} {percent(bad_logits)} {_WHO} have NaN or infinite logits: use a wider precision.")
    for f in here:
        zero, broken = max(f.logits.zero, f.input.zero), max(f.logits.nonfinite, f.input.nonfinite)
        if zero:
            said.append(f"{percent(zero)} {_WHO} give {f.loss} a zero gradient in {precision}; {instead}.")
        elif f.label_lost:
            said.append(
                f"{percent(f.label_lost)} {_WHO} lose the label's part of {f.loss}'s gradient in {precision} "
                f"(the label is no longer pushed down); {instead}."
            )
        if broken > bad_logits:
            said.append(f"{percent(broken)} {_WHO} give {f.loss} a NaN or infinite gradient in {precision}; {instead}.")
    return said


def _good(here: list[Finding]) -> list[Finding]:
    """The sound losses, the advised ones first, without those whose signs are much worse than the best one's."""
    sound = [finding for finding in here if finding.sound]
    best = min((finding.sign_disagreement for finding in sound), default=0.0)
    good = [finding for finding in sound if finding.sign_disagreement <= best + _WORSE]
    return sorted(good, key=lambda f: _ADVISED.index(f.loss) if f.loss in _ADVISED else len(_ADVISED))


def _way_out(here: list[Finding]) -> str:
    good = [finding.loss for finding in _good(here)]
    return "use " + " or ".join(good[:2]) if good else "no loss audited is free of this, use a wider precision"


def _all_sound(here: list[Finding], precision: str, flat: float) -> str:
    errors = {f.loss: f.logits.error.p99 or 0.0 for f in here}
    most = max(errors, key=lambda loss: errors[loss])
    said = (
        f"In {precision} every loss keeps its gradient on all your correctly classified examples"
        f"{' that have one' if flat else ''}; its relative error "
        f"(99th percentile, with respect to the logits) is largest for {most}, {errors[most]:.1e}"
    )
    other = next((f.loss for f in _good(here) if f.loss != most), None)
    return said + (f"; that of {other} is {errors[other]:.1e}." if other else ".")


def _signs(here: list[Finding], precision: str) -> list[str]:
    """Wrong signs of a gradient that is there: too small for the format, or lost in the layers under every loss."""
    good = _good(here)
    if not good:
        return []
    best = min(good, key=lambda finding: finding.sign_disagreement)
    said = [
        f"In {precision} {f.loss} keeps a gradient but has the wrong sign at {percent(f.sign_disagreement)} of the "
        f"pixels ({best.loss}: {percent(best.sign_disagreement)}); {_way_out(here)}."
        for f in here
        if f.sound and f not in good
    ]
    if best.sign_disagreement >= _NETWORK_ERRS:
        network = "that is rounding inside the network, which no loss repairs"
        share = percent(best.sign_disagreement)
        said.append(f"In {precision} even {best.loss} has the wrong sign at {share} of the pixels: {network}.")
    return said
