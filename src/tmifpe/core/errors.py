"""The errors a user may see. Each carries one sentence that says what is wrong and what to do."""

from __future__ import annotations

__all__ = [
    "IncompleteError",
    "InputError",
    "InternalError",
    "MisfitError",
    "MissingExtra",
    "ModelError",
    "as_options",
    "did_you_mean",
    "first_line",
    "is_out_of_memory",
    "raised",
    "shorten",
    "shown",
]

import difflib
import re
import shlex
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_LONGEST = 1000


class InputError(ValueError):
    """The caller gave something that cannot work. The command line prints it and exits with 2."""

    def __init__(self, text: str = "") -> None:
        # A name or a library's message may be a page long; the sentence around it is what matters.
        super().__init__(text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}")


class InternalError(RuntimeError):
    """Two of our own answers contradict each other: a bug of ours, to be reported. The command line shows where."""


class MisfitError(InputError):
    """The model does not take the images or the classes of the data."""


class ModelError(InputError):
    """The model raised an error in its forward pass, which is the cause of this one."""


class IncompleteError(InputError):
    """Some examples have no verdict, so that there are bounds but no number."""


class MissingExtra(InputError):
    """A feature needs an optional dependency that is not installed.

    >>> raise MissingExtra("ONNX models", "onnx")
    Traceback (most recent call last):
    ...
    tmifpe.core.errors.MissingExtra: ONNX models need an optional dependency: pip install 'tmifpe[onnx]'
    """

    def __init__(self, what: str, extra: str, cause: str = "") -> None:
        super().__init__(
            f"{what} need an optional dependency: pip install 'tmifpe[{extra}]'" + (f" ({cause})" if cause else "")
        )


_PHRASES = {
    "`tmifpe.Normalize(model, mean, std)`": "`mean` and `std`",
    "`Threat(norm, eps, low, high)`": "`box=LOW,HIGH`",
}
"""What Python writes and the command line has options for."""


def as_options(text: str) -> str:
    """Text that names arguments as Python does, in backticks, with the options of the command line in their place.

    >>> as_options('try `loss="tmifpe"`, `batch_size=8`, `fresh=True` or `store=None`, and more `steps`')
    'try --loss tmifpe, --batch-size 8, --fresh or --no-store, and more --steps'
    >>> as_options('take `attack=PGD(loss="ce", steps=200)`')
    'take --attack paper --loss ce --steps 200'
    >>> as_options('take `attack="full(steps=200)"`')
    'take --attack full --steps 200'
    >>> as_options("wrap it, `tmifpe.Normalize(model, mean, std)`, or say `Threat(norm, eps, low, high)`")
    'wrap it, --mean and --std, or say --box LOW,HIGH'
    """

    for python, words in _PHRASES.items():
        text = text.replace(python, words)

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2]
        made = re.fullmatch(r'"?(PGD|full)\((.*)\)"?', value or "")
        if made:  # whose options are options of the command
            options = [part.partition("=") for part in made[2].split(", ")]
            attack = "paper" if made[1] == "PGD" else made[1]
            return f"--{name} {attack} " + " ".join(f"--{option} {_word(text)}" for option, _, text in options)
        off, said = value in ("False", "None"), value not in (None, "True", "False", "None")
        return f"--{'no-' * off}{name}" + (f" {value}".replace('"', "") if said else "")

    return re.sub(r"`(\w+)(?:=([^`]*))?`", option, text)


def _word(text: str) -> str:
    """A Python value as one word of a shell."""
    return shlex.quote(text.strip('"'))


def first_line(error: BaseException) -> str:
    """What another library's error says, as far as one of our sentences has room for it.

    >>> first_line(ValueError("no such file\\nlong explanation"))
    'no such file'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0].strip()[:200]  # after its traceback


def raised(error: BaseException) -> str:
    """What somebody's code raised, on one line, and where: the innermost line that is neither ours nor a library's.

    >>> raised(ValueError("no disk\\nat all"))
    'ValueError: no disk'
    """
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = str(Path(__file__).parents[1])
    lines = traceback.extract_tb(error.__traceback__)
    theirs = [line for line in lines if not line.filename.startswith((ours, "<frozen", *libraries))]
    where = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device; a smaller batch fixes that.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("no"))
    (True, False)
    """
    kind, text = type(error).__name__, str(error)
    return kind in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in text or "out of memory" in text


def shown(value: object, most: int = 80) -> str:
    """A value as an error quotes it: on one line, and cut where it is long.

    >>> shown("x" * 100, 5)
    "'xxxx..."
    """
    return shorten(repr(value), most)


def shorten(text: str, most: int) -> str:
    """Text on one line, cut where it is longer than `most`.

    >>> shorten("one\\ntwo three", 7)
    'one two...'
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[:most] + "..."


def did_you_mean(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for an unknown name: the nearest known one, then all of them.

    >>> print(did_you_mean("loss", "tmipfe", ["ce", "tmifpe"]))
    unknown loss 'tmipfe'; did you mean 'tmifpe'? Known: ce, tmifpe
    >>> print(did_you_mean("option", "epsilon", ["eps", "precision"]))
    unknown option 'epsilon'; did you mean 'eps'? Known: eps, precision
    """
    names = sorted(known)
    text = str(name)[:80]
    begun = [known for known in names if len(known) > 2 and text.startswith(known)]  # eps for epsilon
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.8) or begun[-1:]
    near = near or difflib.get_close_matches(text, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return InputError(f"unknown {kind} {shown(name)}{hint} Known: {', '.join(names)}")
