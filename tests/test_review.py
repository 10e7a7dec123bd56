"""Defects that reviewers found by using the program; each stays a test."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from typer.testing import CliRunner

import tmifpe
from tests.linear import Linear, examples
from tmifpe import PGD, InputError, Threat
from tmifpe.cli import app

THREAT = Threat("linf", 0.15)


@pytest.fixture(scope="module")
def digits():
    model = tmifpe.load_model("digits-robust").module
    x, y = tmifpe.load_data("digits", limit=60).fetch(range(60))
    return model, x, y


def test_attacks_have_gradients_in_inference_mode(digits):
    model, x, y = digits
    attack = PGD(steps=10)
    outside = attack(model, x, y, THREAT)
    with torch.inference_mode():
        images = x.clone()
        inside = attack(model, images, y.clone(), THREAT)
        result = tmifpe.evaluate(model, (images, y), THREAT, attack, checks=False)
        tmifpe.audit(model, (images, y), limit=8)
    assert torch.equal(inside, outside)
    assert result.robust_accuracy < result.clean_accuracy


class NanOnce(nn.Module):
    """Its first gradient is NaN."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, 0

    def forward(self, x):
        logits = self.inner(x)
        if x.requires_grad:
            self.seen += 1
            if self.seen == 1:
                logits = logits + (0 * torch.sqrt(x * 0)).sum((1, 2, 3))[:, None]
        return logits


def test_one_lost_gradient_does_not_stay_in_the_momentum(digits):
    model, x, y = digits
    found = tmifpe.mim("tmifpe", steps=10)(NanOnce(model), x, y, THREAT)
    assert ((found - x).abs().flatten(1).amax(dim=1) > 0.1).all()


def test_a_loader_with_its_own_choice_of_examples_is_read_as_it_is():
    model = Linear(4, dtype=torch.float32)
    data = TensorDataset(*examples(model, 20))
    for loader in (
        DataLoader(data, batch_sampler=[[0, 1, 2], [7, 8]]),
        DataLoader(data, sampler=SequentialSampler(range(5))),
    ):
        assert tmifpe.evaluate(model, loader, Threat("linf", 0.01), PGD(steps=1), checks=False).n == 5


def test_a_loaders_own_generator_is_as_it_was():
    model = Linear(4, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    loader = DataLoader(TensorDataset(*examples(model, 6)), shuffle=True, generator=generator)
    tmifpe.evaluate(model, loader, Threat("linf", 0.01), PGD(steps=1), checks=False)
    assert torch.equal(generator.get_state(), before)


def test_images_outside_the_threats_own_box_are_refused(digits):
    model, x, y = digits
    with pytest.raises(InputError, match="must lie in"):
        tmifpe.evaluate(model, (x, y), Threat("linf", 0.15, 0.2, 0.8), PGD(steps=1))


def test_claims_that_fail_never_overfill_the_batch(digits):
    model, x, y = digits
    sizes = []

    class Noisy(nn.Module):
        def forward(self, images):
            sizes.append(len(images))
            return model(images + 0.25 * torch.randn_like(images))

    result = tmifpe.evaluate(Noisy(), (x, y), THREAT, PGD(steps=15), batch_size=8, shard_size=60, checks=False)
    assert max(sizes) <= 8
    assert len(result.outcomes) == 60


def test_a_model_that_prints_does_not_spoil_the_json(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import tmifpe\n"
        "from torch import nn\n"
        "class Loud(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); print('made'); self.net = tmifpe.load_model('digits-robust').module\n"
        "    def forward(self, x):\n"
        "        print('asked'); return self.net(x)\n"
    )
    for verb in ("evaluate", "compare", "audit"):
        words = [verb, f"{tmp_path / 'loud.py'}:Loud", "--data", "digits", "--limit", "8", "--json"]
        words += [] if verb == "audit" else ["--eps", "0.1", "--steps", "2", "--no-store"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)


def test_one_finite_logit_is_no_infinity_in_json(digits):
    class One(nn.Module):
        def forward(self, x):
            logits = torch.full((len(x), 10), -torch.inf, dtype=x.dtype)
            logits[:, 0] = x.mean((1, 2, 3))
            return logits

    found = tmifpe.audit(One(), (digits[1][:3], torch.zeros(3, dtype=torch.long)), precisions=["fp32"])
    assert found.to_json()["delta"]["max"] is None


def test_nothing_left_to_attack_is_one_sentence(digits):
    model, x, y = digits
    with pytest.raises(InputError, match="nothing to attack"):
        tmifpe.evaluate(model, (x[y == 3], y[y == 3]), THREAT, PGD(steps=1), targets=3)


def test_numbers_of_numpy_are_numbers():
    model = Linear(4, dtype=torch.float32)
    options = {"limit": np.int64(5), "seed": np.int64(1), "batch_size": np.int32(2)}
    result = tmifpe.evaluate(model, examples(model, 8), Threat("linf", 0.01), PGD(steps=1), **options)
    assert result.n == 5
    json.dumps(result.to_json())
    assert tmifpe.theory.analyse(np.array([1.0, 2.0, 4.0]), np.int64(2)).label == 2


def test_errors_are_on_one_line(digits):
    model, x, y = digits
    with pytest.raises(InputError) as caught:
        PGD(steps=1)(model, x, y.float(), THREAT)
    assert "\n" not in str(caught.value)


def test_models_that_differ_in_more_than_tensors_are_different_runs(tmp_path):
    def made(layer):
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), layer, nn.Linear(32, 4)).eval()

    data = torch.rand(12, 1, 4, 4), torch.zeros(12, dtype=torch.long)
    for layer in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)):
        result = tmifpe.evaluate(made(layer), data, Threat("linf", 0.1), PGD(steps=1), store=tmp_path, checks=False)
        assert result.resumed == 0
    assert tmifpe.evaluate(made(nn.Tanh()), data, Threat("linf", 0.1), PGD(steps=1), store=tmp_path).resumed == 12


def test_random_targets_of_several_seeds_are_refused(digits):
    model, x, y = digits
    with pytest.raises(InputError, match="one seed"):
        tmifpe.compare(model, (x, y), THREAT, ["ce"], PGD(steps=1), seeds=(0, 1), targets="random")


def test_pictures_of_sixteen_bits_are_not_clipped(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pixels = np.random.default_rng(0).integers(0, 2**16, (8, 8)).astype(np.uint16)
        image.fromarray(pixels).save(tmp_path / name / "x.png")
    with pytest.raises(InputError, match="8 bits"):
        tmifpe.load_data(f"imagefolder:{tmp_path}").fetch([0])


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
def test_a_weaker_attack_that_comes_later_takes_nothing_away(digits, mode):
    model, x, y = digits
    strong, weak = PGD(steps=20), PGD(steps=1, step_size=1e-3, random_start=False)
    alone, both = (
        tmifpe.evaluate(model, (x, y), THREAT, attacks, mode=mode, keep_adv=True, checks=False)
        for attacks in (strong, [strong, weak])
    )
    assert both.outcomes.robust.sum() > 5
    for name in ("margin", "size", "adv_pred", "fooled"):
        assert np.array_equal(getattr(both.outcomes, name), getattr(alone.outcomes, name)), name
    assert torch.equal(both.adv, alone.adv)


def test_a_loaded_model_whose_weights_were_changed_is_another_run(tmp_path):
    data = tmifpe.load_data("digits", limit=12)
    resumed = []
    for _ in range(2):
        model = tmifpe.load_model("digits-robust")
        for change in (0.0, 1e-3):
            with torch.no_grad():
                next(iter(model.module.parameters())).add_(change)
            resumed.append(tmifpe.evaluate(model, data, THREAT, PGD(steps=1), store=tmp_path).resumed)
    assert resumed == [0, 0, 12, 12]


def test_repair_waits_for_a_run_that_has_no_shard_yet(tmp_path, digits):
    model, x, y = digits
    seen = []

    def repairing(step):
        if not seen:
            seen.append(CliRunner().invoke(app, ["runs", "repair", "--store", str(tmp_path)]))

    tmifpe.evaluate(model, (x, y), THREAT, PGD(steps=2), store=tmp_path, progress=repairing)
    assert seen[0].exit_code != 0
    assert "another process is working" in seen[0].output
    assert len(tmifpe.Store(tmp_path).runs()) == 1


def test_targets_of_numpy_and_a_seed_are_understood_by_compare(digits):
    model, x, y = digits
    targets = ((y + 1) % 10).numpy()
    row = tmifpe.compare(model, (x, y), THREAT, ["ce"], PGD(steps=1), seeds=(0, 1), targets=targets, checks=False)
    assert row.results["ce"][0].outcomes.target.tolist() == targets.tolist()
    with pytest.raises(InputError, match="seeds="):
        tmifpe.compare(model, (x, y), THREAT, ["ce"], PGD(steps=1), seed=3)


def test_random_targets_of_two_seeds_are_two_questions(tmp_path):
    command = ["evaluate", "digits-robust", "--limit", "8", "--steps", "1", "--targets", "random", "--no-checks"]
    store = ["--store", str(tmp_path)]
    for seed in ("0", "1"):
        assert CliRunner().invoke(app, [*command, "--seed", seed, *store]).exit_code == 0
    names = [run.name for run in tmifpe.Store(tmp_path).runs()]
    told = CliRunner().invoke(app, ["runs", "compare", *names, *store])
    assert told.exit_code == 2
    assert "other random targets" in told.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["gama", "--momentum", "0.5"], "gama(momentum=0.5)"),
        (["gama", "--schedule", "linear"], "--schedule"),
        (["autoattack", "--steps", "5"], "--steps"),
        (["fgsm", "--steps", "5"], "--steps"),
    ],
)
def test_options_that_an_attack_would_not_hear_are_refused(words, wanted):
    told = CliRunner().invoke(app, ["evaluate", "digits-robust", "--limit", "4", "--no-store", "--loss", *words])
    assert told.exit_code == 2
    assert wanted in told.output


def test_a_device_is_called_what_tensors_call_it():
    from tmifpe.run.prepared_model import pick_device, prepare_model

    assert (
        pick_device("cpu:0") == torch.zeros(1).device == pick_device("auto" if not torch.cuda.is_available() else "cpu")
    )
    model = Linear(3)
    with prepare_model(model, device="cpu:0") as prepared:
        assert prepared.model is model


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.42, 2.82), (-2.1, 2.6)])
def test_the_l2_projection_stays_in_any_box(low, high):
    from tmifpe.norms import Ball, get_norm

    random = torch.Generator().manual_seed(0)
    x = low + (high - low) * torch.rand(64, 3, 8, 8, generator=random)
    far = x + 10 * torch.randn(x.shape, generator=random)
    for eps in (0.5, 5.0, 15.0, 25.0):
        threat = Threat("l2", eps, low, high)
        point = get_norm("l2").project(far, Ball.of(x.clamp(low, high), threat))
        assert bool(((point >= low) & (point <= high)).all())


def test_gama_shortens_its_steps_on_time_however_a_share_is_rounded():
    from tmifpe.attacks.schedules import get_schedule

    by_reciprocal = torch.arange(100, dtype=torch.float32) * torch.tensor(1 / 100, dtype=torch.float32)
    sizes = get_schedule("drops")(by_reciprocal)
    assert (sizes > 0.5).sum() == 60
    assert (sizes > 0.05).sum() == 85


class Shifting(nn.Module):
    """Changes its input in place, behind autograd's back."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.no_grad():
            x.add_(0.1)
        return self.inner(x)


def test_a_model_that_changes_its_input_is_refused(digits):
    model, x, y = digits
    with pytest.raises(InputError, match="in place"):
        tmifpe.evaluate(Shifting(model), (x.clone(), y), THREAT, PGD(steps=2), checks=False)


FAILING = """
import torch
class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, x):
        if {when}:
            {what}
        return self.layer(x.flatten(1))
"""


@pytest.mark.parametrize(
    ("when", "what"),
    [
        ("x.requires_grad", "raise RuntimeError('no gradients')"),
        ("len(x) > 2", "raise KeyError('small batches only')"),
        ("len(x) > 2", "raise SystemExit('bye')"),
        ("x.requires_grad", "x = x.mul_(2)"),
    ],
)
def test_a_model_that_fails_on_the_way_is_one_sentence(tmp_path, when, what):
    (tmp_path / "m.py").write_text(FAILING.format(when=when, what=what))
    for verb in (["evaluate"], ["compare", "--losses", "ce"]):
        told = CliRunner().invoke(
            app, [*verb, f"{tmp_path / 'm.py'}:Failing", "--limit", "8", "--steps", "2", "--no-store"]
        )
        assert told.exit_code == 2, told.output
        assert "the model failed on" in told.output
        assert "Traceback" not in told.output


def test_names_that_stand_alone_take_nothing_after_a_colon():
    with pytest.raises(InputError, match="nothing after a colon"):
        tmifpe.load_model("digits-robust:mine.safetensors")
    with pytest.raises(InputError, match=r"m\.py:FUNCTION"):
        tmifpe.load_model("m.py")


@pytest.mark.parametrize(
    "body",
    [
        (
            "class M(torch.nn.Module):\n"
            "        def __init__(s):\n            super().__init__(); s.nets = [net]\n"
            "        def forward(s, x): return s.nets[0](x.flatten(1))\n"
            "    return M()"
        ),
        "return lambda x: net(x.flatten(1))",
        "nets = {'a': [net]}\n    return lambda x: nets['a'][0](x.flatten(1))",
        "inner = lambda x: net(x.flatten(1))\n    return lambda x: inner(x)",
        (
            "class P:\n        def __init__(s): s.nets = [net]\n"
            "        def go(s, x): return s.nets[0](x.flatten(1))\n    return P().go"
        ),
    ],
)
def test_networks_out_of_torch_s_sight_still_tell_models_apart(tmp_path, body):
    (tmp_path / "fac.py").write_text(
        "import torch\nfrom pathlib import Path\n"
        "def build():\n"
        "    net = torch.nn.Linear(64, 10)\n"
        "    net.load_state_dict(torch.load(Path(__file__).parent / 'net.pt', weights_only=True))\n"
        f"    {body}\n"
    )
    names = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        torch.save(nn.Linear(64, 10).state_dict(), tmp_path / "net.pt")
        names.append(tmifpe.load_model(f"{tmp_path / 'fac.py'}:build").identity)
    assert names[0] == names[1] != names[2]


def test_a_class_folder_without_images_is_named(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.new("L", (8, 8)).save(tmp_path / name / "x.png")
    (tmp_path / "a" / "._x.png").write_bytes(b"resource fork")
    assert len(tmifpe.load_data(f"imagefolder:{tmp_path}")) == 2
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(InputError, match="__MACOSX"):
        tmifpe.load_data(f"imagefolder:{tmp_path}")


def test_results_say_where_they_come_from_and_what_the_source_noted(tmp_path):
    model = tmifpe.load_model("digits-robust")
    noted = replace(model, notes=("states no normalisation",))
    data = tmifpe.load_data("digits", limit=4)
    result = tmifpe.evaluate(noted, data, THREAT, PGD(steps=1))
    assert result.to_json()["notes"] == ["states no normalisation"]
    assert result.to_json()["key"] is None  # nothing was hashed
    words = ["evaluate", "digits-robust", "--limit", "4", "--steps", "1", "--store", str(tmp_path), "--json"]
    told = json.loads(CliRunner().invoke(app, [*words, "--targets", "second"]).stdout)
    assert told["key"]
    assert {"command", "versions", "machine"} <= set(told)
    (row,) = json.loads(CliRunner().invoke(app, ["runs", "list", "--store", str(tmp_path), "--json"]).stdout)["runs"]
    assert row["targets"] == "second"
    assert row["precision"] == "fp32"


def test_an_empty_choice_of_rows_is_not_every_row():
    told = CliRunner().invoke(app, ["table1", "--rows", ","])
    assert told.exit_code == 2
    assert "--rows is empty" in told.output


def test_networks_that_hold_each_other_have_an_identity():
    from tmifpe.models.identity import model_identity

    one, other = Linear(3), Linear(3)
    one.friends, other.friends = [other], [one]
    before = model_identity(one)
    assert before == model_identity(one)
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    assert model_identity(one) != before
