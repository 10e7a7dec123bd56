"""Attacks pass a named module as the identity; the forward pass, the verdicts and the model stay what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.masked import KILLERS, Honest, Named, Wrapped, images, killed, quantise
from tmifpe import PGD, InputError, Threat
from tmifpe.attacks import Queries
from tmifpe.attacks.hooks.straight_through import through_identity
from tmifpe.run.spec import RunSpec

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("unchecked")]

LINF = Threat("linf", 0.05)
X = images(24)


@pytest.mark.parametrize("kind", KILLERS)
def test_at_most_one_image_more_than_square_is_left(kind: str) -> None:
    square = pytest.importorskip("pyautoattack.square").SquareAttack
    model, x = killed(kind), images(48)
    y = model(x).argmax(dim=1)
    with torch.random.fork_rng():
        adv = square(model, eps=LINF.eps, n_queries=300, seed=0, device="cpu").perturb(x, y)
    left = int((model(adv).argmax(dim=1) == y).sum())
    through = tmifpe.evaluate(model, (x, y), LINF, PGD(steps=30), checks=False, straight_through=KILLERS[kind][0])
    assert through.robust <= left + 1
    # Breaks far more than chance does, and so more than the plain gradient: what is broken is broken in fact.
    assert through.robust < 0.7 * len(x)


def test_broken_is_broken_by_the_untouched_model() -> None:
    model = killed("quantise")
    y = model(X).argmax(dim=1)
    result = tmifpe.evaluate(model, (X, y), LINF, PGD(steps=20), checks=False, straight_through="before", keep_adv=True)
    assert result.adv is not None
    fooled = torch.from_numpy(result.outcomes.fooled)
    assert bool(fooled.any())
    assert torch.equal(model(result.adv).argmax(dim=1) != y, fooled)


class Messy(nn.Module):
    """Works in place, on an input that is used again, with gradients switched off around it."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.inner = nn.ReLU(inplace=True), Honest()

    def forward(self, x: Tensor) -> Tensor:
        z = x - 0.5
        with torch.no_grad():
            self.relu(z)
        return self.inner(z)


@pytest.mark.parametrize(
    ("model", "names"), [(killed("quantise"), ["before"]), (Messy(), ["relu"])], ids=["q", "messy"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_forward_pass_keeps_every_bit_and_the_gradient_is_that_behind(model, names, dtype) -> None:
    model = type(model).to(model, dtype)
    x, y = X.to(dtype), torch.zeros(24, dtype=torch.long)
    plain = model(x)
    queries = Queries(model, dtype, straight_through=tuple(names))
    seen = queries.look(x, lambda z: z.gather(1, y[:, None])[:, 0])
    assert torch.equal(seen.logits, plain)
    assert seen.grad is not None
    weights = model.inner.weight[0].reshape(1, 1, 4, 4).expand_as(x)
    assert torch.equal(seen.grad, weights)
    assert torch.equal(model(x), plain)
    assert not any(len(d) for m in model.modules() for k, d in vars(m).items() if "hooks" in k and d)
    model.float()


def test_the_wrapper_is_the_same_module_forward_and_the_identity_backward() -> None:
    wrapped = tmifpe.straight_through(Named(quantise))
    leaf = X.clone().requires_grad_()
    out = wrapped(leaf)
    assert torch.equal(out, quantise(X))
    weights = torch.rand_like(X)
    (grad,) = torch.autograd.grad((out * weights).sum(), leaf)
    assert torch.equal(grad, weights)
    by_name = tmifpe.evaluate(
        killed("quantise"), (X, X.new_zeros(24).long()), LINF, PGD(steps=5), straight_through="b*"
    )
    by_hand = tmifpe.evaluate(Wrapped(wrapped), (X, X.new_zeros(24).long()), LINF, PGD(steps=5))
    assert by_name.outcomes.fooled.tolist() == by_hand.outcomes.fooled.tolist()


def test_autoattack_passes_too() -> None:
    pytest.importorskip("pyautoattack")
    from tmifpe.attacks.autoattack import _Counted

    model = killed("quantise")
    leaf = X.clone().requires_grad_()
    logits = _Counted(Queries(model, straight_through=("before",)), lambda: None, lambda x: x)(leaf)
    (grad,) = torch.autograd.grad(logits[:, 0].sum(), leaf)
    assert torch.equal(grad, model.inner.weight[0].reshape(1, 1, 4, 4).expand_as(X))


def test_it_is_part_of_the_key_and_absence_is_the_frozen_default(tmp_path: Path) -> None:
    model, y = killed("quantise"), killed("quantise")(X).argmax(dim=1)
    keys = []
    for named in ((), "before", ["bef*", "before"]):
        result = tmifpe.evaluate(
            model, (X, y), LINF, PGD(steps=2), checks=False, store=tmp_path, name="q", straight_through=named
        )
        keys.append(result.spec.key())
        assert RunSpec.from_dict(result.spec.as_dict()) == result.spec
    assert keys[0] != keys[1] == keys[2]
    plain = replace(result.spec, straight_through=())
    assert plain.key() == keys[0]
    told = plain.as_dict()
    del told["straight_through"]  # as 0.1.0 wrote it
    assert RunSpec.from_dict(told).key() == keys[0]


class Unused(Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Identity()


@pytest.mark.parametrize(
    ("model", "named", "complaint"),
    [
        (
            killed("quantise"),
            "befor",
            "module of the model 'befor'; did you mean 'before'? Known: before, inner",
        ),
        (killed("quantise"), "inner", "it makes torch.float32 of shape (1, 4) out of shape (1, 1, 4, 4)"),
        (Wrapped(Named(lambda x: (x, x)), inner=Named(lambda pair: pair[0].flatten(1))), "before", "it makes tuple"),
        (Honest().forward, "x", "a function has none"),
        (Unused(), "spare", "is called in the forward pass"),
        (Honest(), 3, "straight_through must be names or patterns of modules, got 3"),
        (Honest(), [""], "straight_through must be names or patterns of modules"),
    ],
)
def test_what_cannot_work_is_one_sentence(model, named, complaint) -> None:
    with pytest.raises(InputError) as caught:
        tmifpe.evaluate(model, (X, torch.zeros(24, dtype=torch.long)), LINF, PGD(steps=1), straight_through=named)
    assert complaint in str(caught.value)
    with pytest.raises(InputError):
        tmifpe.straight_through(quantise)  # pyright: ignore[reportArgumentType]


def test_hooks_go_even_after_an_error() -> None:
    model = killed("quantise")
    with pytest.raises(InputError), through_identity(model, ["inner"]):
        model(X)
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks
