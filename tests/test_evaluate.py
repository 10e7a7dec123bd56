"""The evaluation as a whole: verdicts that depend on nothing they should not, and nothing left changed."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tmifpe
from tests.linear import Linear, distance, examples
from tmifpe import PGD, Threat, evaluate
from tmifpe.core.errors import InputError
from tmifpe.core.stats import wilson
from tmifpe.run.outcomes import Mark

pytestmark = pytest.mark.usefixtures("unchecked")

EPS = 0.15
NUMERICAL = (pytest.mark.numerical, pytest.mark.convolutional)


@pytest.fixture(scope="module")
def digits():
    return tmifpe.load_model("digits-robust").module, tmifpe.load_data("digits")


def linear(n: int = 120, classes: int = 5, wrong: int = 7) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    model = Linear(classes, seed=6)
    x, y = examples(model, n, seed=6)
    y[:wrong] = (y[:wrong] + 1) % classes  # misclassified from the beginning
    return model, x, y


@pytest.mark.numerical
def test_a_linear_model_is_broken_exactly_within_its_distance():
    model, x, y = linear(classes=2)
    eps = 0.004
    result = evaluate(model, (x, y), Threat("linf", eps), PGD(steps=20))
    correct = model(x).argmax(dim=1) == y
    exact, _ = distance(model, x, model(x).argmax(dim=1), "linf")
    expected = (correct & (exact < eps)).numpy()
    assert np.array_equal(result.outcomes.fooled, expected)
    assert result.broken == expected.sum() > 0
    assert result.clean_accuracy == pytest.approx(113 / 120)
    assert result.robust_accuracy == pytest.approx((113 - expected.sum()) / 120)
    assert result.interval == wilson(113 - int(expected.sum()), 120)


def test_misclassified_examples_are_never_attacked():
    model, x, y = linear()
    result = evaluate(model, (x, y), Threat("linf", 0.3), PGD(steps=5), keep_adv=True)
    wrong = ~result.outcomes.correct
    assert wrong.sum() == 7
    assert not result.outcomes.fooled[wrong].any()
    assert (result.outcomes.steps_used[wrong] == 0).all()
    assert torch.equal(result.adv[torch.from_numpy(wrong)], x[torch.from_numpy(wrong)])
    assert result.robust_accuracy == 0


def test_rows_say_what_happened():
    model, x, y = linear()
    result = evaluate(model, (x, y), Threat("l2", 0.05), PGD(steps=20), keep_adv=True)
    predictions = model(result.adv).argmax(dim=1)
    for row in result.outcomes:
        assert row.label == y[row.index]
        if row.fooled:
            assert row.adv_pred == predictions[row.index] != row.label
            assert 0 < row.size <= 0.05 * (1 + 1e-6)
            assert row.margin > 0
            assert row.stage == 0
        else:
            assert row.stage == -1
    assert len(result.outcomes) == 120
    assert sum(n for n, _, _ in result.per_class().values()) == 120


@pytest.mark.parametrize("batch_size", [1, pytest.param(7, marks=NUMERICAL), 16, 200])
def test_float64_verdicts_do_not_depend_on_the_batch(digits, batch_size):
    model, data = digits
    asked = {"precision": "fp64", "limit": 30, "checks": False}
    first = evaluate(model, data, Threat("linf", EPS), PGD(steps=10), batch_size=30, **asked)
    other = evaluate(model, data, Threat("linf", EPS), PGD(steps=10), batch_size=batch_size, shard_size=25, **asked)
    assert 0 < first.broken < first.n
    assert np.array_equal(first.outcomes.fooled, other.outcomes.fooled)
    assert np.array_equal(first.outcomes.steps_used, other.outcomes.steps_used)


@pytest.mark.numerical
@pytest.mark.convolutional
def test_float64_verdicts_do_not_depend_on_subset_or_order(digits):
    model, data = digits
    options = {"precision": "fp64", "batch_size": 16, "checks": False}
    whole = evaluate(model, data, Threat("l2", 0.8), PGD(steps=15), limit=40, **options)
    order = [31, 3, 29, 12, 5, 36, 21]
    part = evaluate(model, data, Threat("l2", 0.8), PGD(steps=15), indices=order, **options)
    assert part.outcomes.index.tolist() == order
    assert part.outcomes.fooled.tolist() == whole.outcomes.fooled[order].tolist()
    np.testing.assert_allclose(part.outcomes.margin, whole.outcomes.margin[order], rtol=1e-9)


@pytest.mark.numerical
@pytest.mark.convolutional
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_float32_verdicts_hardly_depend_on_the_batch(digits, norm, record_property):
    """At most 1 verdict in 1000, listed, but for those at the edge: rounding decides there, on each processor anew."""
    model, data = digits
    threat = Threat(norm, EPS if norm == "linf" else 0.8)
    asked = {"limit": 100, "checks": False}
    tables = [evaluate(model, data, threat, PGD(steps=10), batch_size=b, **asked).outcomes for b in (7, 32, 100)]
    different = sorted({int(i) for t in tables for i in np.flatnonzero(t.fooled != tables[0].fooled)})
    record_property("verdicts that differ with the batch size", str(different))
    # The edge: where the strongest point that float64 finds is within a hundredth of a typical margin.
    wide = evaluate(model, data, threat, PGD(steps=10), precision="fp64", mode="strongest", **asked)
    margin = abs(wide.outcomes.margin)
    edge = np.flatnonzero(margin < 0.01 * np.median(margin))
    assert len(edge) <= 0.02 * len(margin)
    assert len(set(different) - set(edge.tolist())) <= 0.001 * len(tables[0])


@pytest.mark.parametrize("power", [-20, -7, 3, 20])
def test_scaling_the_logits_by_a_power_of_two_changes_no_verdict(digits, power):
    model, data = digits

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x) * 2.0**power

    plain = evaluate(model, data, Threat("linf", EPS), PGD(steps=15), limit=60)
    scaled = evaluate(Scaled(), data, Threat("linf", EPS), PGD(steps=15), limit=60)
    assert np.array_equal(plain.outcomes.fooled, scaled.outcomes.fooled)
    assert np.array_equal(plain.outcomes.steps_used, scaled.outcomes.steps_used)


def test_a_constant_added_to_the_logits_hardly_matters_in_float64(digits):
    """All of it in float64: 1e4 costs the logits 1e-12, and no verdict hangs on so little; a float32 network would
    round the gradient that comes back, and make more of it."""
    model, data = digits
    model = deepcopy(model).double()

    def offset(x):
        return model(x.double()) + 1e4

    plain = evaluate(lambda x: model(x.double()), data, Threat("linf", EPS), PGD(steps=15), limit=200)
    moved = evaluate(offset, data, Threat("linf", EPS), PGD(steps=15), limit=200)
    assert (plain.outcomes.fooled != moved.outcomes.fooled).sum() <= len(plain.outcomes) / 1000


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
        self.body[1].weight.requires_grad_(False)
        self.body[2].eval()

    def forward(self, x):
        return self.body(x)


@pytest.mark.checked
def test_nothing_global_changes():
    """Random state, grad mode, default dtype, and the model's modes, dtypes and requires_grad."""
    torch.manual_seed(5)
    model = Everything().train()
    model.body[2].eval()
    modes = [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    values = [p.detach().clone() for p in model.state_dict().values()]
    x, y = torch.rand(12, 1, 4, 5), torch.arange(12) % 4
    before = (
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )
    threads = torch.get_num_threads()
    for precision in ("fp64", "fp32", "bf16"):
        evaluate(model, (x, y), Threat("linf", 0.2), PGD(steps=3), precision=precision)
    with torch.no_grad():
        PGD(steps=3)(model, x, y, Threat("l2", 0.2))
        assert not torch.is_grad_enabled()
    with pytest.raises(InputError):
        evaluate(model, (x, y + 7), Threat("linf", 0.2), PGD(steps=3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == before[2:]
    assert torch.get_num_threads() == threads
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert all(torch.equal(a, b) for a, b in zip(values, model.state_dict().values(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None


def test_data_may_be_tensors_a_dataset_or_a_loader():
    model, x, y = linear(40)
    threat, attack = Threat("linf", 0.004), PGD(steps=5)
    dataset = TensorDataset(x, y)
    tables = [
        evaluate(model, data, threat, attack).outcomes.fooled
        for data in ((x, y), dataset, DataLoader(dataset, batch_size=9))
    ]
    assert np.array_equal(tables[0], tables[1])
    assert np.array_equal(tables[0], tables[2])


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_precision_on_every_dtype_of_data(precision, dtype):
    model, x, y = linear(30, classes=3, wrong=0)
    model = model.float()
    result = evaluate(model, (x.to(dtype), y), Threat("linf", 0.3), PGD(steps=5), precision=precision)
    assert result.spec.precision == precision
    assert result.robust_accuracy == 0
    assert next(model.parameters()).dtype == torch.float32


def test_several_attacks_run_in_turn_on_what_is_left():
    model, x, y = linear()
    threat = Threat("linf", 0.006)
    weak = evaluate(model, (x, y), threat, "fgsm(loss=ce)")
    both = evaluate(model, (x, y), threat, ["fgsm(loss=ce)", PGD(steps=20)])
    assert both.robust_accuracy <= weak.robust_accuracy
    stages = both.outcomes.stage[both.outcomes.fooled]
    assert np.array_equal(both.outcomes.stage == 0, weak.outcomes.fooled)
    assert set(stages.tolist()) <= {0, 1}


class TestTargeted:
    def test_broken_means_predicted_as_the_target(self):
        model, x, y = linear()
        result = evaluate(model, (x, y), Threat("linf", 0.01), PGD(steps=20), targets="second", keep_adv=True)
        fooled = result.outcomes.fooled
        assert 0 < fooled.sum() < 113
        predictions = model(result.adv).argmax(dim=1).numpy()
        assert (predictions[fooled] == result.outcomes.target[fooled]).all()
        assert result.to_json()["success_rate"] == pytest.approx(fooled.sum() / 113)

    def test_rules(self):
        model, x, y = linear(wrong=0)
        z = model(x).detach()
        masked = z.clone().scatter_(1, y[:, None], -torch.inf)
        threat = Threat("linf", 0.0)
        second = evaluate(model, (x, y), threat, PGD(steps=1), targets="second").outcomes.target
        assert np.array_equal(second, masked.argmax(dim=1).numpy())
        least = evaluate(model, (x, y), threat, PGD(steps=1), targets="least-likely").outcomes.target
        assert np.array_equal(least, z.argmin(dim=1).numpy())
        draw = evaluate(model, (x, y), threat, PGD(steps=1), targets="random").outcomes.target
        assert (draw != y.numpy()).all()
        assert len(np.unique(draw)) == 5

    def test_examples_at_the_target_are_left_out(self):
        model, x, y = linear(wrong=0)
        result = evaluate(model, (x, y), Threat("linf", 0.3), PGD(steps=10), targets=2)
        at_target = (y == 2).numpy()
        assert np.array_equal((result.outcomes.marks & Mark.LEFT_OUT) != 0, at_target)
        assert result.n == (~at_target).sum()
        assert result.success_rate == 1.0

    @pytest.mark.parametrize("targets", ["secnd", 5, -1, torch.tensor([1, 2])])
    def test_bad_targets(self, targets):
        model, x, y = linear()
        with pytest.raises(InputError, match="target"):
            evaluate(model, (x, y), Threat("linf", 0.1), PGD(steps=1), targets=targets)


class TestBadInput:
    """One clear sentence each."""

    x, y = torch.rand(4, 1, 4, 5), torch.arange(4) % 3

    def refused(self, match: str, model=None, data=None, threat=None, **options) -> None:
        with pytest.raises(InputError, match=match) as caught:
            evaluate(model or Linear(3).float(), data or (self.x, self.y), threat or Threat("linf", 0.1), **options)
        assert "\n" not in str(caught.value)

    def test_images_outside_the_box(self):
        self.refused("normalis", data=(self.x * 3 - 1, self.y))

    def test_nan_images(self):
        self.refused("finite|NaN", data=(self.x * torch.nan, self.y))

    def test_labels_out_of_range(self):
        self.refused("label", data=(self.x, self.y + 1))
        self.refused("label", data=(self.x, self.y - 1))

    def test_empty(self):
        self.refused("empty|no example", data=(self.x[:0], self.y[:0]))

    def test_output_of_the_wrong_shape(self):
        self.refused("logits", model=lambda x: x)
        self.refused("logits", model=lambda x: [x])
        self.refused("logits", model=lambda x: x.flatten(1)[:2])

    def test_nan_from_the_model(self):
        self.refused("NaN", model=lambda x: x.flatten(1)[:, :3] * torch.nan)

    def test_unknown_names(self):
        self.refused("did you mean 'linf'", threat=Threat("lin", 0.1))
        self.refused("precision", precision="fp31")
        self.refused("unknown option of evaluate", stepz=4)
        self.refused("mode", mode="fast")
        self.refused("attack", attack="pgx")
        for option in ("limit", "batch_size", "eot", "shard_size"):
            self.refused(option, **{option: 0})


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (10, 10), (3, 7), (500, 1000)])
def test_wilson_against_its_definition(successes, n):
    low, high = wilson(successes, n)
    for edge in (low, high):
        if 0 < edge < 1:
            z = abs(successes / n - edge) / (edge * (1 - edge) / n) ** 0.5
            assert z == pytest.approx(1.959963984540054)
    assert 0 <= low <= successes / n <= high <= 1


def test_images_outside_the_threats_own_box_are_refused(robust_digits):
    model, x, y = robust_digits
    with pytest.raises(InputError, match="must lie in"):
        tmifpe.evaluate(model, (x, y), Threat("linf", 0.15, 0.2, 0.8), PGD(steps=1))


def test_claims_that_fail_never_overfill_the_batch(robust_digits):
    model, x, y = robust_digits
    sizes = []

    class Noisy(nn.Module):
        def forward(self, images):
            sizes.append(len(images))
            return model(images + 0.25 * torch.randn_like(images))

    result = tmifpe.evaluate(
        Noisy(), (x, y), Threat("linf", 0.15), PGD(steps=15), batch_size=8, shard_size=60, checks=False
    )
    assert max(sizes) <= 8
    assert len(result.outcomes) == 60


def test_nothing_left_to_attack_is_one_sentence(robust_digits):
    model, x, y = robust_digits
    with pytest.raises(InputError, match="nothing to attack"):
        tmifpe.evaluate(model, (x[y == 3], y[y == 3]), Threat("linf", 0.15), PGD(steps=1), targets=3)


def test_numbers_of_numpy_are_numbers():
    model = Linear(4, dtype=torch.float32)
    options = {"limit": np.int64(5), "seed": np.int64(1), "batch_size": np.int32(2)}
    result = tmifpe.evaluate(model, examples(model, 8), Threat("linf", 0.01), PGD(steps=1), **options)
    assert result.n == 5
    json.dumps(result.to_json())
    assert tmifpe.theory.analyse(np.array([1.0, 2.0, 4.0]), np.int64(2)).label == 2


class Moving(nn.Module):
    """Keeps an average of what it has seen."""

    def __init__(self):
        super().__init__()
        self.inner = Linear(4, dtype=torch.float32)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.mean += x.mean()
        return self.inner(x)


@pytest.mark.checked
def test_averages_moved_in_a_forward_pass_are_put_back():
    model, threat = Moving(), Threat("linf", 0.01)
    x, y = examples(model.inner, 6)
    tmifpe.evaluate(model, (x, y), threat, PGD(steps=2))
    assert model.mean == 0
    tmifpe.evaluate(model, (x, y), threat, PGD(steps=2), repeats=2)
    assert model.mean == 0
    PGD(steps=2)(model, x, y, threat)
    assert model.mean == 0
    tmifpe.audit(model, (x.clamp(0, 1), y), ["ce"], limit=4)
    assert model.mean == 0


@pytest.mark.parametrize("mode", ["strongest", "verdict"])
def test_a_weaker_attack_that_comes_later_takes_nothing_away(robust_digits, mode):
    model, x, y = robust_digits
    strong, weak = PGD(steps=20), PGD(steps=1, step_size=1e-3, random_start=False)
    alone, both = (
        tmifpe.evaluate(model, (x, y), Threat("linf", 0.15), attacks, mode=mode, keep_adv=True, checks=False)
        for attacks in (strong, [strong, weak])
    )
    assert both.outcomes.robust.sum() > 5
    for name in ("margin", "size", "adv_pred", "fooled"):
        assert np.array_equal(getattr(both.outcomes, name), getattr(alone.outcomes, name)), name
    assert torch.equal(both.adv, alone.adv)


def test_a_device_is_called_what_tensors_call_it():
    from tmifpe.run.prepared_model import pick_device, prepare_model

    assert (
        pick_device("cpu:0") == torch.zeros(1).device == pick_device("auto" if not torch.cuda.is_available() else "cpu")
    )
    model = Linear(3)
    with prepare_model(model, device="cpu:0") as prepared:
        assert prepared.model is model


class Shifting(nn.Module):
    """Changes its input in place, behind autograd's back."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.no_grad():
            x.add_(0.1)
        return self.inner(x)


def test_a_model_that_changes_its_input_is_refused(robust_digits):
    model, x, y = robust_digits
    with pytest.raises(InputError, match="in place"):
        tmifpe.evaluate(Shifting(model), (x.clone(), y), Threat("linf", 0.15), PGD(steps=2), checks=False)
