"""Robustness as a test: `assert_robust` for pytest, unittest or a plain script."""

from __future__ import annotations

__all__ = ["assert_robust"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tmifpe.attacks import Attack
from tmifpe.core.errors import InputError
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.evaluation.evaluate import evaluate
from tmifpe.report.broken import describe
from tmifpe.report.gates import Gates
from tmifpe.run.request import EvaluateOptions, Request
from tmifpe.run.result import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack


def assert_robust(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    at_least: float = 0.4,
    attack: Attack | str | Sequence[Attack | str] = "full",
    *,
    clean_at_least: float | None = None,
    lower_at_least: float | None = None,
    strict: bool = False,
    **options: Unpack[EvaluateOptions],
) -> Result:
    """Fail unless the robust accuracy (a fraction in [0, 1]) is `at_least` that; the message lists what was broken.

    A model whose clean accuracy is no better than guessing fails too, unless `checks=False`.

    clean_at_least, lower_at_least: what the clean accuracy, and the lower end of the 95 % interval of the robust one,
        must reach.
    strict: fail if any flag is raised.
    attack, options: those of `tmifpe.evaluate`, `limit`, `seed` and `store` among them.

    >>> import tmifpe
    >>> def test_model_is_robust():
    ...     model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=32)
    ...     assert_robust(model, data, tmifpe.Threat("linf", 0.1), at_least=0.4, attack=tmifpe.PGD(steps=10))
    >>> test_model_is_robust()
    """
    __tracebackhide__ = True  # pytest then shows the caller's line
    if strict and options.get("checks") is False:
        raise InputError("strict looks at flags, and checks=False raises none; leave one of them out")
    own = ("at_least", "clean_at_least", "lower_at_least", "strict")
    Request.of(cast("dict[str, Any]", options), "assert_robust", own)  # or `evaluate` would suggest its own options
    gates = Gates(at_least, clean_at_least, lower_at_least, strict)
    result = evaluate(model, data, threat, attack, **options)
    if missed := gates.missed(result):
        others = [case.said for case in missed if case.name != "robust accuracy"]
        raise AssertionError("\n".join([*others, describe(result, at_least)]))
    return result
