"""What to do about a flag, given what was done already: nobody is told to try what this run has tried."""

from __future__ import annotations

__all__ = ["Ran", "advised"]

from collections.abc import Callable
from dataclasses import dataclass, replace

from tmifpe.attacks import is_full
from tmifpe.checks.flags import FLAGS, MISLEADING
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job

_SCALE_FREE = frozenset({"tmifpe", "cw"})


@dataclass(frozen=True)
class Ran:
    """What advice depends on."""

    losses: frozenset[str] = frozenset()
    """The names of the losses that its attacks climbed."""
    attacks: frozenset[str] = frozenset()
    full: bool = False
    """Whether it was the default attack, with whatever options, or what of it fits a targeted run."""
    blind: bool = False
    """Whether a gradient-free attack, or such a part of one, took part."""
    steps: int = 0
    restarts: int = 1
    eot: int = 1
    repeats: int = 1
    precision: str = "fp32"
    second: str = ""
    """The precision of the second opinion."""

    @classmethod
    def of(cls, job: Job, repeats: int = 1) -> Ran:
        stages = job.attack.stages
        # An attack of a user's own may call anything by these names.
        spelled = [loss for stage in stages if isinstance(loss := getattr(stage, "loss", None), str)]
        losses = {text.partition("(")[0].partition("@")[0] for text in spelled}
        return cls(
            losses=frozenset(losses),
            attacks=frozenset(stage.name for stage in stages),
            full=is_full(job.attack),
            blind=any(not one.needs_gradient for stage in stages for one in (stage, *stage.parts)),
            steps=max(_whole(stage, "steps", 0) for stage in stages),
            restarts=max(_whole(stage, "restarts", 1) for stage in stages),
            eot=job.eot,
            repeats=repeats,
            precision=job.prepared.precision,
            second=job.second.precision if job.second is not None else "",
        )

    @property
    def default(self) -> list[str]:
        """To run the default attack, where the run did not."""
        return [] if self.full else ['run the default, `attack="full"`']

    def longer(self, restarts: int = 1) -> str:
        """The run's attack with ten times as many steps and so many times the restarts. Of several attacks, one that
        climbs the default loss."""
        if self.full:
            again = f", restarts={restarts}" if restarts > 1 else ""
            return f'`attack="full(steps={10 * self.steps}{again})"`'
        known = sorted(self.losses - {"tmifpe"})
        loss = f'loss="{known[0]}", ' if len(known) == len(self.losses) == 1 else ""
        again = f", restarts={restarts * self.restarts}" if restarts * self.restarts > 1 else ""
        return f"`attack=PGD({loss}steps={10 * (self.steps or 100)}{again})`"

    @property
    def gradient_free(self) -> str:
        return "give the gradient-free attack of this run more queries" if self.blind else "add a gradient-free attack"

    @property
    def draws(self) -> str:
        """What is missing where a model draws."""
        wanted = ["average the gradient over draws with `eot=20`"] if self.eot == 1 else []
        wanted += ["report a mean over draws with `repeats=10`"] if self.repeats == 1 else []
        return ", and ".join(wanted)


def _whole(stage: object, name: str, default: int) -> int:
    value = getattr(stage, name, default)
    return value if isinstance(value, int) else default


def advised(flag: Flag, ran: Ran) -> Flag:
    """The flag with advice for this run; what was written for its case already is left."""
    write, text = _ADVICE.get(flag.name), ""
    if write is not None and flag.advice == FLAGS.get(flag.name).advice:
        text = write(ran)
    text = text[:1].upper() + text[1:] or flag.advice
    if flag.name in MISLEADING and not ran.full and 'attack="full"' not in text:
        text += ' The default, `attack="full"`, goes on by other means where gradients mislead.'
    return replace(flag, advice=text)


def _zero_gradients(ran: Ran) -> str:
    if "tmifpe" not in ran.losses:
        return ""
    if others := sorted(ran.losses - {"tmifpe"}):
        return (
            f"The gradient of {', '.join(others)} may have underflowed there, which that of T-MIFPE, used here too, "
            f"never does: run without it. If the flag stays, the network itself has no gradient: {ran.gradient_free}."
        )
    return (
        "Those survivors were not attacked, and no other loss helps: that of T-MIFPE, used here, never underflows, so "
        f"the network itself has no gradient. Attack a differentiable approximation of it, or {ran.gradient_free}."
    )


def _gradient_lost(ran: Ran) -> str:
    if "tmifpe" not in ran.losses:
        return ""
    return 'T-MIFPE was used already: run the model in `precision="fp64"`, where the gradient is not lost.'


def _saturated(ran: Ran) -> str:
    second = "" if ran.second or ran.precision == "fp64" else '; `verify="fp64"` confirms it'
    if ran.losses and ran.losses <= _SCALE_FREE:
        return (
            f"The loss of this run does not depend on the scale of the logits, and its number stands{second}; do not "
            "compare with numbers found by cross-entropy."
        )
    check = "" if ran.second or ran.precision == "fp64" else ' and `verify="fp64"`'
    return (
        'Use a loss that does not depend on the scale of the logits: that of the default, `attack="full"`, '
        f"or cw{check}; do not compare with numbers found by cross-entropy."
    )


def _unusable(ran: Ran) -> str:
    if ran.precision != "fp64":
        return ""
    return (
        "Find where the network divides by zero or overflows, since float64, used here, does not help: such a query "
        "never counts as success: the number may be too high."
    )


def _unstable(ran: Ran) -> str:
    average = "average it over draws (`eot`), " if ran.eot == 1 else ""
    return f"The gradient says nothing about the loss a step away: {average}smooth it, or {ran.gradient_free}."


def _dropout(ran: Ran) -> str:
    off = "Switch it off (module.eval() in the factory, training=False in functional calls)"
    return f"{off}, or treat the model as randomised: {ran.draws}." if ran.draws else f"{off}."


def _incomplete(ran: Ran) -> str:
    return ", or ".join([*ran.default, f"take ten times as many steps, {ran.longer()}"]) + "."


def _from_outside(ran: Ran) -> str:
    kinds = [*([] if "autoattack" in ran.attacks else ["AutoAttack"]), *([] if ran.blind else ["a gradient-free one"])]
    others = f"use attacks of another kind ({', '.join(kinds)})" if kinds else "look for what misleads them"
    more = ", then ".join([*ran.default, f"take more steps and restarts, {ran.longer(5)}"])
    return (
        f"The number is too high: {more}; if that does not help, the gradients near the images are misleading: "
        f"{others} and report what all of them leave."
    )


def _spot_check(ran: Ran) -> str:
    more = ran.default or [f"take more steps and restarts, {ran.longer(5)}"]
    return f"The number is too high: {more[0]}, or evaluate with that attack, and check again."


def _two_classes(ran: Ran) -> str:
    wanted = [] if ran.restarts > 1 else ran.default
    wanted += [] if ran.blind else ["add a gradient-free attack"]
    return "Agreement between losses is no evidence here" + (f": {' and '.join(wanted)}." if wanted else ".")


_ADVICE: dict[str, Callable[[Ran], str]] = {
    "randomised": lambda ran: f"{ran.draws}." if ran.draws else "",
    "dropout-active": _dropout,
    "inference-time-optimisation": lambda ran: (
        "The gradient may not flow through the inner optimisation: attack it end to end, try examples of another model "
        f"(`transfer_adv`), and {ran.gradient_free}."
    ),
    "too-few-classes": _two_classes,
    "saturated-logits": _saturated,
    "gradient-lost": _gradient_lost,
    "unavailable-gradients": lambda ran: (
        "Something in it is not differentiable (rounding, argmax, detach): attack a differentiable approximation of "
        f"that part, or {ran.gradient_free}."
    ),
    "zero-gradients": _zero_gradients,
    "unusable-logits": _unusable,
    "unstable-predictions": _unstable,
    "incomplete-optimisation": _incomplete,
    "found-from-outside": _from_outside,
    "spot-check": _spot_check,
}
"""By flag; an empty text leaves the general advice of the catalogue."""
