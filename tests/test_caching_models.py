"""Models that remember what they returned, by where the images lie or by the object that holds them; both are given to
other images as soon as they are free."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.masked import Remembering
from tmifpe import PGD, Threat
from tmifpe.attacks.loop.queries import Queries

KEYS: dict[str, Callable[[Tensor], Hashable]] = {
    "data_ptr": lambda x: (x.data_ptr(), x.shape),
    "id": lambda x: (id(x), x.shape),
}
X = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def caching(key: Callable[[Tensor], Hashable] | None) -> Remembering:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Remembering(key, nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)))


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("attack", ["square(queries=200)", "pgd(steps=20)", "fgsm+pgd(steps=10)"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_what_is_claimed_and_what_is_right_is_true(attack: str, key: Callable[[Tensor], Hashable], batch_size: Any):
    model, honest = caching(key), caching(None)
    y = honest(X).argmax(dim=1)
    y[:3] = (y[:3] + 1) % 4
    options: dict[str, Any] = {"batch_size": batch_size, "shard_size": 8, "keep_adv": True, "checks": False}
    for _ in range(2):  # the second run finds the memory of the first
        found = tmifpe.evaluate(model, (X, y), Threat("linf", 0.2), attack, **options)
        truth = honest(found.adv).argmax(dim=1) != y
        assert found.outcomes.correct.tolist() == [False] * 3 + [True] * 27
        claimed = torch.from_numpy(found.outcomes.fooled)
        assert not bool((claimed & ~truth).any())


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_minimal_claims_nothing_false(key: Callable[[Tensor], Hashable]):
    model, honest = caching(key), caching(None)
    y = honest(X).argmax(dim=1)
    for _ in range(2):
        found = tmifpe.minimal(model, X, y, "linf", steps=20)
        assert bool((honest(found.adv).argmax(dim=1) != y)[found.found].all())


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("n", [2, 30])
def test_it_is_flagged(key: Callable[[Tensor], Hashable], n: int):
    model = caching(key)
    y = caching(None)(X).argmax(dim=1)
    flags = tmifpe.evaluate(model, (X[:n], y[:n]), Threat("linf", 0.1), PGD(steps=3)).flags
    assert "remembers-images" in [flag.name for flag in flags]


def test_fresh_images_lie_where_none_has_lain():
    seen: list[tuple[int, int]] = []

    def model(x: Tensor) -> Tensor:
        seen.append((x.data_ptr(), id(x)))
        return x.flatten(1)

    for precision in (torch.float32, torch.float16):
        queries = Queries(model, precision)
        for _ in range(300):
            before = list(seen)
            given = torch.rand(4, 1, 2, 2)
            logits = queries.logits(given, fresh=True)
            assert torch.equal(logits, given.to(precision).flatten(1))
            assert seen[-1][0] not in [address for address, _ in before]
            assert seen[-1][1] not in [name for _, name in before]
            assert seen[-1][0] % 64 == 0
            queries.logits(given)
