"""The foundations: rng, options, registry, threat."""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tmifpe
from tmifpe.core import numerics, rng
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.numbers import read_number, real_number, whole_number, whole_numbers
from tmifpe.core.options import parse, spell, split_list
from tmifpe.core.registry import Registry
from tmifpe.core.types import Threat


def test_uniform_numbers_are_uniform_and_independent():
    u = rng.uniform(0, torch.arange(4000), 0, 0, (50,)).double()
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert abs(u.mean() - 0.5) < 3e-3
    assert abs(u.var() - 1 / 12) < 1e-3
    counts = torch.histc(u, bins=64, min=0, max=1)
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2 < 63 + 5 * math.sqrt(2 * 63)
    correlation = torch.corrcoef(u.t()) - torch.eye(50)
    assert correlation.abs().max() < 5.5 / math.sqrt(4000)


def test_normal_numbers_are_normal():
    z = rng.normal(1, torch.arange(4000), 0, 0, (50,)).double()
    assert torch.isfinite(z).all()
    assert abs(z.mean()) < 5e-3
    assert abs(z.std() - 1) < 5e-3
    assert abs((z.abs() > 1.959964).double().mean() - 0.05) < 2e-3


@given(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 5), st.integers(0, 5))
def test_a_stream_is_a_function_of_its_key(seed, index, stage, restart):
    alone = rng.uniform(seed, torch.tensor([index]), stage, restart, (3,))
    company = rng.uniform(seed, torch.tensor([1, index, 7]), stage, restart, (3,))
    assert torch.equal(alone[0], company[1])


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
keys = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
values = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), names)


@given(names, st.dictionaries(keys, values, max_size=4))
def test_spelling_is_read_back(name, options):
    read_name, read = parse(spell(name, options))
    assert read_name == name
    assert {k: str(v) for k, v in read.items()} == {k: str(parse(f"x(a={v})")[1]["a"]) for k, v in options.items()}


@pytest.mark.parametrize("text", ["", "a(", "a(b)", "a(b=1,b=2)", "a)b", "a(1=2)", "a b"])
def test_bad_spellings_are_refused(text):
    with pytest.raises(InputError):
        parse(text)


def test_lists_keep_their_parentheses():
    assert split_list("pgd(loss=mifpe(T=2),steps=3),ce") == ["pgd(loss=mifpe(T=2),steps=3)", "ce"]
    assert parse("pgd(loss=mifpe(T=2),steps=3)") == ("pgd", {"loss": "mifpe(T=2)", "steps": 3})


def test_registry_refuses_doubles_and_suggests():
    registry: Registry[int] = Registry("thing")
    registry.add("alpha", 1, "one")
    with pytest.raises(ValueError, match="twice"):
        registry.add("alpha", 2, "two")
    with pytest.raises(InputError, match="did you mean 'alpha'"):
        registry.get("alhpa")


@pytest.mark.parametrize("eps", ["8/255", 8 / 255])
def test_threat_reads_fractions(eps):
    assert Threat("Linf", eps) == Threat("linf", 8 / 255)


@pytest.mark.parametrize("eps", [-1, float("nan"), "inf", "x", "1/0", None, [1]])
def test_bad_eps_is_one_sentence(eps):
    with pytest.raises(InputError, match="eps"):
        Threat("linf", eps)


def test_margin_counts_negative_logits_right():
    z = torch.tensor([[-3.0, -1.0, -2.0]])
    assert numerics.margin(z, torch.tensor([1])).item() == -1.0
    assert numerics.margin(z, torch.tensor([0])).item() == 2.0
    assert numerics.margin(z, torch.tensor([1]), torch.tensor([2])).item() == -1.0


def test_row_norm_neither_under_nor_overflows():
    x = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]])
    torch.testing.assert_close(numerics.row_norm(x), torch.tensor([5e-30, 5e30, 0.0]))


def _modules() -> list[str]:
    found = pkgutil.walk_packages(tmifpe.__path__, "tmifpe.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings_run(name):
    try:
        module = importlib.import_module(name)
    except MissingExtra as error:
        pytest.skip(str(error))
    failures, _ = doctest.testmod(module)
    assert failures == 0


def test_everything_promised_is_there():
    for name in tmifpe.__all__:
        assert getattr(tmifpe, name) is not None
    assert set(tmifpe.__all__) <= set(dir(tmifpe))


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_become_plain_ints(value):
    assert type(whole_number("n", value)) is int
    assert whole_numbers("labels", [value], 1).tolist() == [3]


@pytest.mark.parametrize("value", [True, 3.0, "3", None, 0, math.nan])
def test_what_is_not_a_whole_number_is_refused(value):
    with pytest.raises(InputError, match="n must be a whole number of at least 1"):
        whole_number("n", value)


@pytest.mark.parametrize("value", [True, "1", None, math.inf, math.nan, 10**400, -0.1, 1.1])
def test_what_is_not_a_number_within_bounds_is_refused(value):
    with pytest.raises(InputError, match="x must be a number at least 0 and at most 1, got"):
        real_number("x", value, least=0, most=1)


@pytest.mark.parametrize("value", ["1/0", "x", "inf", None, [1], 10**400])
def test_what_cannot_be_read_as_a_number_is_refused(value):
    with pytest.raises(InputError, match="eps must be"):
        read_number("eps", value)


@pytest.mark.parametrize("values", [[1.0, 2.0], [True, False], [-1, 2], [1], [[1, 2]], "ab", None])
def test_what_is_not_a_row_of_whole_numbers_is_refused(values):
    with pytest.raises(InputError, match="labels must be 2 whole numbers"):
        whole_numbers("labels", values, 2)
