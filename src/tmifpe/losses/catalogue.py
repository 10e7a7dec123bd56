"""The losses by name."""

from __future__ import annotations

__all__ = ["LOSSES", "get_loss", "register_loss", "spelled_loss", "spelling"]

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any, cast

from tmifpe.core import options
from tmifpe.core.errors import InputError, shown
from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    from tmifpe.losses.loss import AnyLoss, Loss


def _admit(thing: Any, name: str) -> type[Loss]:
    from tmifpe.losses.function import function_loss

    if not inspect.isclass(thing):
        return function_loss(thing, name)
    if not dataclasses.is_dataclass(thing) or not cast(Any, thing).__dataclass_params__.frozen:
        raise InputError(f"the class {name} must be a frozen dataclass: decorate it with @dataclass(frozen=True)")
    if not _fits(thing):
        raise InputError(f"{name} is no loss: give it __call__(self, logits, labels, targets=None) -> (n,)")
    return cast("type[Loss]", thing)


def _fits(thing: Any) -> bool:
    """Whether it is called on logits and labels; what can be made without arguments and has a budget is an attack."""
    if inspect.isclass(thing):
        return any("__call__" in vars(cls) for cls in thing.__mro__) and not hasattr(thing, "budget")
    try:
        inspect.signature(thing).bind(None, None)
        required = [p for p in inspect.signature(thing).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return False
    return len(required) >= 2


LOSSES: Registry[type[Loss]] = Registry("loss", "losses", _admit, _fits, any_case=True)
LOSSES.add("ce", "tmifpe.losses.ce:CE", "cross-entropy in its usual form")
LOSSES.add("ce-margin", "tmifpe.losses.ce_margin:CEMargin", "cross-entropy in a form without cancellation: the control")
LOSSES.add("cw", "tmifpe.losses.cw:CW", "Carlini and Wagner: the margin of the logits")
LOSSES.add("dlr", "tmifpe.losses.dlr:DLR", "difference of logits ratio, of AutoAttack (K >= 3; targeted K >= 4)")
LOSSES.add("mifpe", "tmifpe.losses.mifpe:MIFPE", "cross-entropy of T z/Delta with a fixed T (default 1)")
LOSSES.add("pm", "tmifpe.losses.pm:PM", "the margin of probabilities, without the softmax's rounding")
LOSSES.add("tmifpe", "tmifpe.losses.tmifpe:TMIFPE", "cross-entropy of t* z/Delta, t* by theory: the paper's loss")
LOSSES.add("tmifpe-naive", "tmifpe.losses.tmifpe_naive:TMIFPENaive", "the same as printed, to measure the difference")


register_loss = LOSSES.register


def get_loss(loss: AnyLoss) -> Loss:
    """The loss that a text spells, e.g. `ce`, `mifpe(T=10)`, `my_loss.py:Hinge(margin=2)`; or that a class, an
    instance or a plain function is.

    >>> get_loss("mifpe(T=10)")
    MIFPE(T=10.0)
    """
    if isinstance(loss, str):
        return options.build(LOSSES, loss)
    if inspect.isclass(loss):
        return options.build(LOSSES, LOSSES.name_for(loss))
    if inspect.isroutine(loss) or isinstance(loss, functools.partial):
        return options.build(LOSSES, LOSSES.adopt(loss))
    if not dataclasses.is_dataclass(loss) or not callable(loss):
        raise InputError(
            "a loss must be a name, a function f(logits, labels, targets) -> (n,) or a frozen dataclass, got "
            f"{shown(loss)}; wrap it in a function that returns one value per example"
        )
    options.check_spelled(loss, spelling(cast("Loss", loss)), get_loss)
    return cast("Loss", loss)


def spelled_loss(canonical: AnyLoss) -> Loss:
    """The loss of a canonical text, the same until its code is run again. Attacks ask for it at every step."""
    return _spelled_loss(canonical, LOSSES.changes)


@functools.lru_cache(maxsize=256)
def _spelled_loss(canonical: AnyLoss, changes: int) -> Loss:  # noqa: ARG001
    return get_loss(canonical)


def spelling(loss: Loss) -> str:
    """The canonical text of a loss, with only the options that differ from their defaults: what `get_loss` reads.

    >>> spelling(get_loss("mifpe( T = 10 )")), spelling(get_loss("mifpe(T=1)"))
    ('mifpe(T=10)', 'mifpe')
    """
    chosen: dict[str, Any] = {}
    for field in dataclasses.fields(loss):  # pyright: ignore[reportArgumentType]
        value = getattr(loss, field.name)
        if value is not field.default and value != field.default:
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
            chosen[field.name] = int(value) if whole else value
    return options.spell(LOSSES.name_for(type(loss)), chosen)
