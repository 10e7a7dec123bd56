"""What a result must reach, for a CI to go on."""

from __future__ import annotations

__all__ = ["Case", "Gates"]

from dataclasses import dataclass

from tmifpe.core.errors import InputError
from tmifpe.run.result import Result


@dataclass(frozen=True)
class Case:
    """One gate: what was asked of the result, and whether it holds."""

    name: str
    passed: bool
    said: str


@dataclass(frozen=True)
class Gates:
    """Fractions in [0, 1] that accuracies must reach, None for what is not asked; `strict` allows no flag.

    Whoever asks for robust accuracy also asks for a model that is better than guessing: 8 % clean and robust accuracy
    with ten classes would pass a gate at 5 %, and mean nothing.

    >>> Gates(robust=0.4, clean=0.9).strict
    False
    """

    robust: float | None = None
    clean: float | None = None
    lower: float | None = None
    """For the lower end of the 95 % interval of the robust accuracy."""
    strict: bool = False

    def __post_init__(self) -> None:
        for value in (self.robust, self.clean, self.lower):
            if value is not None and not 0 <= value <= 1:
                meant = f"; {value:g} % is {value / 100:g}" if 1 < value <= 100 else ""
                raise InputError(f"what an accuracy must reach is a fraction in [0, 1], got {value:g}{meant}")

    def cases(self, result: Result) -> list[Case]:
        """The robust accuracy, which passes if nothing is asked of it, and every other gate that was asked for; none
        where there is no accuracy."""
        if not result.complete:
            return []
        found = [_reached("robust accuracy", result.robust_accuracy, self.robust, f" ({result.robust} of {result.n})")]
        if self.clean is not None:
            found.append(_reached("clean accuracy", result.clean_accuracy, self.clean))
        if self.lower is not None:
            found.append(_reached("lower end of the 95 % interval", result.interval[0], self.lower))
        asked = (self.robust, self.clean, self.lower) != (None, None, None)
        guessing = [flag for flag in result.flags if flag.name == "chance-accuracy"]
        if asked and guessing:
            found.append(Case("better than guessing", False, f"no better than guessing: {guessing[0].seen}"))
        if self.strict:
            lines = [f"{flag.name}: {flag.seen} {flag.advice}" for flag in result.flags]
            found.append(Case("no flags", not lines, "\n".join(lines) or "no flag was raised"))
        return found

    def required(self, result: Result) -> list[Case]:
        """The gates that were set."""
        return [case for case in self.cases(result) if case.name != "robust accuracy" or self.robust is not None]

    def missed(self, result: Result) -> list[Case]:
        return [case for case in self.cases(result) if not case.passed]


def _reached(name: str, value: float, least: float | None, more: str = "") -> Case:
    required = "" if least is None else f"; at least {least:.2%} is required"
    return Case(name, least is None or value >= least, f"{name} {value:.2%}{more}{required}")
