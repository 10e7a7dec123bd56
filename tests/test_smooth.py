"""The smoother backward pass: the forward pass keeps every bit, and what dies in the true gradient comes alive."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tmifpe
from tmifpe import PGD, Threat
from tmifpe.attacks import Loop, Problem, Queries, attack_spelling, get_attack
from tmifpe.attacks.hooks.smooth import SmoothBackward
from tmifpe.core.errors import InputError
from tmifpe.run.outcomes import Mark

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("unchecked")]

UNITS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "Tensor.relu": lambda z: z.relu(),
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": lambda z: nn.ReLU(inplace=True)(z.clone()),
    "relu_": lambda z: z.clone().relu_(),
    "nn.ReLU6": nn.ReLU6(),
    "F.relu6": F.relu6,
    "nn.LeakyReLU": nn.LeakyReLU(0.1),
    "nn.Hardtanh": nn.Hardtanh(-0.5, 1.5),
    "nn.Hardtanh in place": lambda z: nn.Hardtanh(-0.5, 1.5, inplace=True)(z.clone()),
    "clamp(min=0)": lambda z: z.clamp(min=0),
    "clamp(0, 1)": lambda z: torch.clamp(z, 0.0, 1.0),
    "clamp_min": lambda z: z.clamp_min(0.0),
    "nn.Threshold": nn.Threshold(0.0, 0.0),
}


def draws(n: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 4, generator=generator, dtype=torch.float64).to(dtype)


def gradient(unit: Callable[[Tensor], Tensor], z: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_()
    layer = torch.eye(z.shape[-1], dtype=z.dtype)  # exact
    if share is None:
        out = unit(leaf @ layer)
    else:
        with SmoothBackward(share):
            out = unit(leaf @ layer)
    return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_the_forward_pass_keeps_every_bit_and_share_0_every_gradient(unit, dtype):
    z = draws(dtype=dtype)
    plain, true = gradient(unit, z, None)
    for share in (torch.zeros(6), torch.full((6,), 0.7), torch.tensor([0.0, 1.0] * 3)):
        out, found = gradient(unit, z, share)
        assert torch.equal(out, plain)
        assert torch.equal(found[share == 0], true[share == 0])
        assert (found[share > 0] != true[share > 0]).any() == bool((share > 0).any())


def test_the_slope_is_the_ramp_of_the_rows_own_deviation():
    z = draws()
    share = torch.linspace(0.1, 2, 6, dtype=torch.float64)
    _, found = gradient(F.relu, z, share)
    s = share * z.flatten(1).std(dim=1, correction=0)
    wanted = (z / (4 * s[:, None, None]) + 0.5).clamp(0, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)  # the same few operations in float64
    _, leaky = gradient(nn.LeakyReLU(0.1), z, share)
    torch.testing.assert_close(leaky, 0.1 + 0.9 * wanted, rtol=0, atol=1e-14)


def test_rows_do_not_see_each_other():
    z, share = draws(), torch.linspace(0.0, 2, 6, dtype=torch.float64)
    _, together = gradient(F.relu, z, share)
    for k in range(6):
        _, alone = gradient(F.relu, z[k : k + 1], share[k : k + 1])
        # The deviation of 12 numbers may be summed in another order.
        torch.testing.assert_close(alone[0], together[k], rtol=0, atol=1e-12)


def test_a_layer_whose_first_dimension_is_not_the_batch_stays_plain():
    z = draws()
    with SmoothBackward(torch.ones(6)) as seen:
        leaf = z.clone().requires_grad_()
        out = F.relu(leaf.transpose(0, 1))
    (found,) = torch.autograd.grad(out.sum(), leaf)
    assert (seen.smoothed, seen.left) == (0, 1)
    assert torch.equal(found, (z > 0).to(z.dtype))


PREPARATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(0, 1),
    "clip after noise": lambda x: torch.clip(x + 0.01, min=0, max=1),
    "normalised": lambda x: torch.clamp((x - 0.5) / 0.2, -3, 3),
    "resized": lambda x: F.interpolate(x[:, None], size=(3, 4), mode="bilinear")[:, 0].clamp_max(1),
    "hardtanh": lambda x: F.hardtanh(x, 0, 1),
    "twice": lambda x: x.clamp(0, 1).clamp_min(0.1),
}


@pytest.mark.parametrize("prepare", PREPARATIONS.values(), ids=PREPARATIONS)
def test_what_clips_the_images_is_no_rectifier(prepare):
    """Else it takes a share of the smoothing from the rectifiers, and pixels out of the box get a gradient."""
    first, second = (nn.Linear(12, 12, bias=False).double() for _ in range(2))

    x = draws().requires_grad_()
    with SmoothBackward(torch.ones(6)) as seen:
        z = first(prepare(x).flatten(1)).relu()
        # Behind a layer a clamp is a rectifier, also where the images themselves are added.
        out = second(z.clamp(0, 1)) + (x.flatten(1) + z).clamp(0, 1)
    assert (seen.smoothed, seen.left) == (3, 0)
    assert torch.isfinite(torch.autograd.grad(out.sum(), x)[0]).all()


def test_the_gradient_of_clipped_images_is_the_true_one():
    x, layer = draws().requires_grad_(), nn.Linear(4, 4, bias=False).double()
    with SmoothBackward(torch.ones(6)) as seen:
        out = layer(x.clamp(0, 1))
    (found,) = torch.autograd.grad(out.sum(), x)
    assert seen.smoothed == 0
    assert torch.equal(found != 0, (x >= 0) & (x <= 1))


def test_nothing_is_left_behind():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    _, true = gradient(model, draws(), None)
    gradient(model, draws(), torch.ones(6))
    _, after = gradient(model, draws(), None)
    assert torch.equal(true, after)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not torch.overrides._get_current_function_mode_stack()


class Asleep(nn.Module):
    """The unit that turns the answer is off near the image, and its threshold lies well inside the ball."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(dim=1)
        turned = F.relu(torch.stack([mean - 0.56, 0.3 * mean], dim=1))[:, 0]
        return torch.stack([torch.full_like(mean, 0.01), turned + 0 * mean], dim=1)


def asleep(n: int = 8) -> Problem:
    x = 0.5 + 0.01 * draws(n)[:, None]
    return Problem(x, torch.zeros(n, dtype=torch.long), None, torch.arange(n), Threat("linf", 0.1))


def test_a_dead_unit_is_woken():
    plain = PGD(steps=20, random_start=False).run(asleep(), Queries(Asleep()), Loop())
    assert not plain.fooled.any()
    assert (plain.zero_grad == 20).all()
    woken = PGD(steps=20, random_start=False, smooth=1.0).run(asleep(), Queries(Asleep()), Loop())
    assert woken.fooled.all()


def test_zero_gradients_are_those_of_the_plain_gradient():
    """Smoothed looks are not counted, neither as zero nor as evidence of a gradient."""
    problem = asleep().at(0.01)  # the threshold is out of reach
    verdicts = PGD(steps=20, random_start=False, smooth=1.0).run(problem, Queries(Asleep()), Loop())
    assert not verdicts.fooled.any()
    assert (verdicts.plain == 6).all()
    assert (verdicts.zero_grad == 6).all()
    result = tmifpe.evaluate(Asleep(), (problem.x, problem.labels), Threat("linf", 0.01), PGD(smooth=1.0, steps=20))
    assert ((result.outcomes.marks & Mark.ZERO_GRADIENT) != 0).all()


@pytest.mark.convolutional
def test_the_batch_changes_nothing():
    model = tmifpe.load_model("digits-robust")
    asked = {"limit": 12, "precision": "fp64", "checks": False}
    attack, threat = PGD(steps=12, smooth=1.0), Threat("linf", 0.15)
    data = tmifpe.load_data("digits")
    whole = tmifpe.evaluate(model, data, threat, attack, **asked).outcomes
    for batch in (1, 5, 64):
        part = tmifpe.evaluate(model, data, threat, attack, batch_size=batch, shard_size=7, **asked).outcomes
        assert (part.fooled == whole.fooled).all()
        assert (part.steps_used == whole.steps_used).all()
    assert 0 < whole.fooled.sum() < 12


def test_a_model_without_a_rectifier_is_noted():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.trace(network, draws(2).float())
    x = draws(4).sigmoid()
    for one, images in ((model, x), (scripted, x.float())):
        labels = one(images).argmax(dim=1)
        result = tmifpe.evaluate(one, (images[:, None], labels), Threat("linf", 0.1), PGD(steps=3, smooth=1.0))
        assert any("no rectifier" in note for note in result.notes)
        plain = tmifpe.evaluate(one, (images[:, None], labels), Threat("linf", 0.1), PGD(steps=3))
        assert not any("no rectifier" in note for note in plain.notes)


def test_draws_are_averaged_and_half_precision_runs():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    model[2].train()
    x, y = draws(4).sigmoid()[:, None].float(), torch.zeros(4, dtype=torch.long)
    queries = Queries(model, eot=4)
    problem = Problem(x, y, None, torch.arange(4), Threat("linf", 0.1))
    PGD(steps=3, smooth=1.0).run(problem, queries, Loop(mode="strongest"))
    assert queries.tally.backwards == 4 * 3 * 4
    for dtype in (torch.bfloat16, torch.float16):
        adv = PGD(steps=3, smooth=1.0)(model.eval().to(dtype), x, y, Threat("linf", 0.1))
        assert torch.isfinite(adv).all()


def test_is_an_option_of_pgd_like_any_other():
    attack = PGD(smooth=0.5)
    assert get_attack(attack_spelling(attack)) == attack
    assert get_attack("pgd(smooth=0.5)") == attack
    for bad in (-1, float("nan"), "x", 1000):
        with pytest.raises(InputError, match="smooth"):
            PGD(smooth=bad)
