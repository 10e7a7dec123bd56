"""One way to fuzz: a property is tried on a few cases in `make test`, on many in `make test-slow`, on many more in
`make fuzz`; the cases are counted. They are the same every time but in `make fuzz`, which looks for new ones."""

from __future__ import annotations

__all__ = ["NASTY", "damage", "damage_inside", "fuzz", "mix", "sentence", "tried"]

import io
import os
import zipfile
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import CASES, cases
from tmifpe.core.errors import InputError

T = TypeVar("T")

NASTY = [
    "",
    " ",
    "\0",
    "a\0b",
    "-",
    "--",
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1/0",
    "8/255",
    "1_000",
    "٣",
    "²",
    "9" * 25,
    "9" * 5000,
    "../",
    "../../x",
    "./.",
    "~",
    "~nobody-of-that-name/x",
    "x" * 300,
    "x/" * 3000,
    "a:b",
    ":",
    "::",
    "npz:",
    "[red]x[/red]",
    "[/]",
    "<script>alert(1)</script>",
    "&amp;\"'",
    "\x1b[31mred\x1b[0m",
    "\x07\x08\r\n",
    "a\nb",
    "\u202eabc",
    "🦆",
    "\ud800",
    "\udcff",
    "%s%n",
    "{0}",
    "$(touch x)",
    "`touch x`",
    "'; DROP TABLE runs; --",
    "None",
    "true",
    "auto",
    "ce",
    "ce()",
    "ce(",
    "ce)",
    "ce(a=1)",
    "pgd(steps=1,loss=mifpe(T=2))",
    "mifpe(T=1e308)",
    "tmifpe(lam=1e-300)",
    "(" * 200,
    "," * 200,
    "=",
]
"""Texts that have broken programs before. None begins with a slash: nothing outside a test's folder is named."""


def fuzz(quick: int, slow: int, **strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A test of a property in two sizes, from what is to hold of one case."""

    def made(holds: Callable[..., None]) -> Any:
        def test(size: str, record_property: Callable[[str, object], None]) -> None:
            count = 0

            def counted(**case: Any) -> None:
                nonlocal count
                count += 1
                holds(**case)

            searching = "TMIFPE_FUZZ" in os.environ
            run = settings(
                max_examples=cases({"quick": quick, "slow": slow}[size]),
                deadline=None,
                derandomize=not searching,
                database=None,
                suppress_health_check=list(HealthCheck),
                print_blob=searching,
            )(given(**strategies)(counted))
            run()
            record_property(CASES, count)  # tests/conftest.py adds them up

        test.__name__, test.__doc__, test.__module__ = holds.__name__, holds.__doc__, holds.__module__
        sizes = ["quick", pytest.param("slow", marks=pytest.mark.slow)]
        return pytest.mark.hypothesis(pytest.mark.parametrize("size", sizes)(test))

    return made


def tried(action: Callable[[], T]) -> T | None:
    """What comes of it, or None where it was refused in one sentence; any other exception is the test's failure."""
    try:
        return action()
    except InputError as error:
        sentence(str(error))
        return None


def sentence(text: str) -> None:
    """Something a person can read: not empty, not a page."""
    assert text.strip()
    assert len(text) < 1200, text
    assert "Traceback" not in text


def mix(*good: str) -> st.SearchStrategy[str]:
    """Good values, nasty ones, and random text."""
    text = st.text(max_size=12).map(lambda drawn: drawn.lstrip("/"))
    return st.one_of(st.sampled_from(good), st.sampled_from(NASTY), text) if good else st.sampled_from(NASTY) | text


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A way to spoil a file: cut it, change, insert or repeat bytes, or be something else altogether."""
    kind = draw(st.sampled_from(["cut", "flip", "flip", "flip", "insert", "drop", "zero", "tail", "other", "empty"]))
    where, raw = draw(st.floats(0, 1, exclude_max=True)), draw(st.binary(min_size=1, max_size=8))
    spots = draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))

    def spoil(content: bytes) -> bytes:
        at = int(where * len(content))
        if kind == "flip":
            changed = bytearray(content)
            for spot, bits in spots:
                changed[int(spot * len(changed))] ^= bits
            return bytes(changed)
        spoilt = {
            "cut": content[:at],
            "insert": content[:at] + raw + content[at:],
            "drop": content[:at] + content[at + len(raw) :],
            "zero": content[:at] + bytes(len(raw)) + content[at + len(raw) :],
            "tail": content + raw * 50,
            "other": raw * 20,
            "empty": b"",
        }
        return spoilt[kind]

    return spoil


@st.composite
def damage_inside(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A way to spoil one entry of a zip archive, whose checksums are then right again."""
    spoil, which = draw(damage()), draw(st.floats(0, 1, exclude_max=True))
    rename = draw(st.sampled_from([None, None, None, "x/../y", "evil.pkl", "code/x.py", "models/model.JSON"]))

    def respoil(content: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
        at, buffer = int(which * len(entries)), io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for place, (name, inside) in enumerate(entries):
                spoilt = rename is not None and place == at
                archive.writestr(
                    f"{name.partition('/')[0]}/{rename}" if spoilt else name, spoil(inside) if place == at else inside
                )
        return buffer.getvalue()

    return respoil
