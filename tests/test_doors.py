"""Code written for AutoAttack, RobustBench, torchattacks and foolbox runs with another import line, and no worse.

The scripts are those of the peers' READMEs, written anew with the same calls, on the bundled model.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.peers import peer
from tmifpe import InputError, Threat
from tmifpe.compat import foolbox as fb
from tmifpe.compat import robustbench, torchattacks
from tmifpe.compat.autoattack import AutoAttack

pytestmark = pytest.mark.usefixtures("unchecked")

N, EPS = 10, 0.1
MEAN, STD = [0.25], [0.5]


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    data = tmifpe.load_data("digits", limit=N)
    return data.fetch(range(N))


@pytest.fixture
def model() -> nn.Module:
    module = tmifpe.load_model("digits-robust").module
    assert isinstance(module, nn.Module)
    return module.eval()


def check(adv: Tensor, x: Tensor, eps: float = EPS, order: float = math.inf) -> None:
    """Shape, dtype, box and ball. The slack is the rounding of x + delta in float32, at most half an ulp of 1 for each
    of the 64 pixels."""
    assert adv.shape == x.shape
    assert adv.dtype == x.dtype
    assert adv.min() >= 0
    assert adv.max() <= 1
    assert torch.linalg.vector_norm((adv - x).flatten(1), ord=order, dim=1).max() <= eps + 64 * 2**-24


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).float().mean())


# What no door takes.

DOORS = {
    "autoattack": lambda model, x, y: AutoAttack(model, eps=EPS, verbose=False).run_standard_evaluation(x, y),
    "autoattack-clean": lambda model, x, y: AutoAttack(model, eps=EPS, verbose=False).clean_accuracy(x, y),
    "torchattacks": lambda model, x, y: torchattacks.PGD(model, eps=EPS, steps=1)(x, y),
    "foolbox": lambda model, x, y: fb.attacks.LinfPGD(steps=1)(fb.PyTorchModel(model, (0, 255)), x, y, epsilons=8),
    "foolbox-accuracy": lambda model, x, y: fb.accuracy(fb.PyTorchModel(model, (0, 255)), x, y),
    "robustbench-clean": lambda model, x, y: robustbench.clean_accuracy(model, x, y),
}


@pytest.mark.parametrize("door", DOORS)
def test_bytes_and_arrays_are_refused(model, batch, door):
    images, labels = batch
    with pytest.raises(InputError, match=r"the images are uint8.* `images.float\(\) / 255`"):
        DOORS[door](model, (images * 255).byte(), labels)
    with pytest.raises(InputError, match=r"must be a tensor, got ndarray; .*torch.from_numpy"):
        DOORS[door](model, images.numpy(), labels.numpy())


def test_robustbench_scales_bytes(model, batch):
    images, labels = batch
    scaled = (images * 255).byte()
    clean, robust = robustbench.benchmark(model, dataset=(scaled, labels), eps=EPS)
    assert clean == robustbench.clean_accuracy(model, scaled.float() / 255, labels)
    assert robust <= clean


# AutoAttack.


def test_autoattack_readme(model, batch, tmp_path, capsys):
    images, labels = batch
    adversary = AutoAttack(model, norm="Linf", eps=EPS, version="standard", log_path=tmp_path / "log.txt")
    x_adv, y_adv = adversary.run_standard_evaluation(images, labels, bs=5, return_labels=True)
    check(x_adv, images)
    assert torch.equal(model(x_adv).argmax(dim=1), y_adv)
    assert y_adv.dtype == labels.dtype
    robust = y_adv == labels
    assert torch.equal(x_adv[robust], images[robust])
    said = capsys.readouterr().out
    assert said == (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "initial accuracy: 100.00%" in said
    assert "robust accuracy after PGD: " in said  # the stage that really ran
    assert "APGD-CE" not in said
    assert said.endswith(f"robust accuracy: {accuracy(model, x_adv, labels):.2%}\n")


def test_autoattack_individual_and_custom(model, batch, capsys):
    images, labels = batch
    adversary = AutoAttack(
        model, norm="L2", eps=0.5, version="custom", attacks_to_run=["apgd-ce", "square"], verbose=False, device="cpu"
    )
    adversary.apgd.n_restarts, adversary.apgd.n_iter, adversary.square.n_queries = 1, 5, 20
    found = adversary.run_standard_evaluation_individual(images, labels, bs=5)
    assert list(found) == ["apgd-ce", "square"]
    for adv in found.values():
        check(adv, images, 0.5, 2)
    assert adversary.clean_accuracy(images, labels, bs=5) == 1.0
    both = adversary.run_standard_evaluation(images, labels, bs=5)
    assert accuracy(model, both, labels) <= min(accuracy(model, adv, labels) for adv in found.values())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": "plus"}, "apgd-t"),
        ({"version": "exotic"}, "not known"),
        ({"attacks_to_run": ["apgd-ce"]}, "version='custom'"),
        ({"is_tf_model": True}, "TensorFlow"),
        ({"norm": "L7"}, "Linf, L2, L1"),
        ({"version": "custom", "attacks_to_run": ["apgd-t"]}, "does not have apgd-t"),
        ({"version": "custom", "attacks_to_run": ["apgd-ce", "apgd-t"]}, "multi-targeted"),
        ({"version": "custom"}, "empty"),
    ],
)
def test_what_autoattack_has_and_we_have_not_is_refused(model, batch, options, said):
    with pytest.raises(InputError, match=said):
        AutoAttack(model, eps=EPS, verbose=False, **options).run_standard_evaluation(*batch)


def test_settings_that_no_attack_reads_are_not_ignored(model, batch):
    adversary = AutoAttack(model, eps=EPS, verbose=False)
    adversary.apgd.n_restarts = 20
    with pytest.raises(InputError, match=r"adversary\.apgd was changed"):
        adversary.run_standard_evaluation(*batch)
    with pytest.raises(InputError, match="state_path"):
        AutoAttack(model, eps=EPS, verbose=False).run_standard_evaluation(*batch, state_path="state.json")


def test_rand_averages_over_twenty_draws():
    adversary = AutoAttack(nn.Flatten(), version="rand", verbose=False)
    assert (adversary.attacks_to_run, adversary.apgd.eot_iter) == (["apgd-ce", "apgd-dlr"], 20)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps", "order"), [("Linf", EPS, math.inf), ("L2", 0.3, 2)])
def test_standard_is_at_or_below_autoattack(model, batch, norm, eps, order):
    images, labels = batch
    theirs = peer("pyautoattack").AutoAttack(model, norm=norm, eps=eps, seed=0)  # keyword-only, and other names
    x_theirs, y_theirs = theirs.run_standard_evaluation(images, labels, batch_size=N)
    x_ours, y_ours = AutoAttack(model, norm, eps, 0, False).run_standard_evaluation(images, labels, N, True)
    assert (x_ours.shape, x_ours.dtype) == (x_theirs.shape, x_theirs.dtype)
    assert (y_ours.shape, y_ours.dtype) == (y_theirs.shape, y_theirs.dtype)
    check(x_ours, images, eps, order)
    assert accuracy(model, x_ours, labels) <= accuracy(model, x_theirs, labels)


# torchattacks.

LINF = [
    (torchattacks.FGSM, {}),
    (torchattacks.BIM, {"alpha": 0.03, "steps": 4}),
    (torchattacks.PGD, {"alpha": 0.03, "steps": 4}),
    (torchattacks.EOTPGD, {"alpha": 0.03, "steps": 3}),
    (torchattacks.FFGSM, {"alpha": 0.1}),
    (torchattacks.MIFGSM, {"alpha": 0.03, "steps": 4}),
    (torchattacks.APGD, {"steps": 4}),
    (torchattacks.TMIFPE, {"steps": 4}),
    (torchattacks.Square, {"n_queries": 10}),
]


@pytest.mark.parametrize(("kind", "options"), LINF, ids=lambda value: getattr(value, "__name__", ""))
def test_torchattacks_call(model, batch, kind, options):
    images, labels = batch
    attack = kind(model, eps=EPS, **options)
    check(attack(images, labels), images)
    attack.set_mode_targeted_by_label(quiet=True)
    towards = attack(images, (labels + 1) % 10)
    check(towards, images)
    assert repr(attack).startswith(f"{kind.__name__}(device=cpu, attack_mode=targeted(label), targeted=True, ")


def test_torchattacks_targets(batch):
    """A model whose logits are the first three pixels: the targets can be read off."""
    x, y = torch.tensor([[[[0.9, 0.5, 0.1]]], [[[0.1, 0.9, 0.5]]]]), torch.tensor([0, 1])
    attack = torchattacks.PGD(nn.Flatten(), eps=1.0, alpha=0.5, steps=5)
    attack.set_mode_targeted_least_likely()
    assert attack.get_target_label(x, y).tolist() == [2, 0]
    assert attack(x, y).flatten(1).argmax(dim=1).tolist() == [2, 0]
    attack.set_mode_targeted_least_likely(kth_min=2)
    assert attack.get_target_label(x, y).tolist() == [1, 2]
    attack.set_mode_targeted_by_function(lambda inputs, labels: (labels + 1) % 3)
    assert attack(x, y).flatten(1).argmax(dim=1).tolist() == [1, 2]
    attack.set_mode_targeted_random()
    drawn = torch.stack([attack.get_target_label(x, y) for _ in range(40)])
    assert not (drawn == y).any()
    assert drawn.unique().tolist() == [0, 1, 2]
    attack.set_mode_default()
    assert (attack(x, y).flatten(1).argmax(dim=1) != y).all()
    with pytest.raises(InputError, match="no targeted mode"):
        torchattacks.AutoAttack(nn.Flatten()).set_mode_targeted_by_label()


def test_torchattacks_normalisation_is_undone_and_redone(model, batch):
    images, labels = batch
    plain = torchattacks.BIM(model, eps=EPS, alpha=0.03, steps=3)
    seen = torchattacks.BIM(Shifted(model), eps=EPS, alpha=0.03, steps=3)
    seen.set_normalization_used(MEAN, STD)
    adv = seen.inverse_normalize(seen(seen.normalize(images), labels))
    # The same attack on the same pixels: only the rounding of the way there and back is between them.
    assert (adv - plain(images, labels)).abs().median() < 1e-6
    check(adv.clamp(0, 1), images, EPS + 1e-6)


class Shifted(nn.Module):
    """A model that wants normalised images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x * STD[0] + MEAN[0])


def test_torchattacks_draws_from_torch(model, batch):
    attack = torchattacks.PGD(model, eps=EPS, alpha=0.01, steps=1)
    torch.manual_seed(0)
    first, second = attack(*batch), attack(*batch)
    torch.manual_seed(0)
    assert torch.equal(attack(*batch), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("name", ["adv.pt", "adv.safetensors"])
@pytest.mark.parametrize("save_type", ["float", "int"])
def test_torchattacks_save_and_load(model, batch, tmp_path, capsys, name, save_type):
    images, labels = batch
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=4)
    attack = torchattacks.FGSM(model, eps=EPS)
    file = str(tmp_path / name)
    told = attack.save(
        loader, file, return_verbose=True, save_predictions=True, save_clean_inputs=True, save_type=save_type
    )
    adv, y, predictions, clean = (
        torch.cat(column)
        for column in zip(*attack.load(file, batch_size=3, load_predictions=True, load_clean_inputs=True), strict=True)
    )
    step = 1 / 255 if save_type == "int" else 0
    assert (adv - attack(images, labels)).abs().max() <= step + 1e-6
    assert (clean - images).abs().max() <= step + 1e-6
    assert torch.equal(y, labels)
    assert told is not None
    assert told[0] == pytest.approx(100 * float((predictions == labels).float().mean()))
    assert "Robust accuracy" in capsys.readouterr().out


def test_torchattacks_load_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"adv_inputs": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="tensors only"):
        torchattacks.Attack.load(tmp_path / "evil.pt")


def test_torchattacks_composed(model, batch):
    images, labels = batch
    parts = [torchattacks.FGSM(model, eps=EPS), torchattacks.BIM(model, eps=EPS, alpha=0.03, steps=4)]
    both = torchattacks.MultiAttack(parts)(images, labels)
    check(both, images)
    assert accuracy(model, both, labels) <= min(accuracy(model, part(images, labels), labels) for part in parts)


def test_torchattacks_leaves_the_model_as_it_was(model, batch):
    model.train()
    next(iter(model.parameters())).requires_grad_(False)
    before = [(p.requires_grad, p.grad) for p in model.parameters()]
    torchattacks.PGD(model, eps=EPS, steps=2)(*batch)
    assert model.training
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == before


def test_what_torchattacks_has_and_we_have_not_is_refused(model):
    from tmifpe.compat.torchattacks import CW

    with pytest.raises(InputError, match=r"tmifpe\.minimal"):
        CW(model)
    with pytest.raises(InputError, match="eval mode"):
        torchattacks.PGD(model).set_model_training_mode(model_training=True)
    with pytest.raises(InputError, match="rho"):
        torchattacks.APGD(model, rho=0.5)
    with pytest.raises(AttributeError):
        _ = torchattacks.Nothing


@pytest.mark.parametrize("name", ["FGSM", "BIM", "PGD", "PGDL2"])
def test_beside_torchattacks(model, batch, name, capsys):
    images, labels = batch
    library = peer("torchattacks")
    given = {"FGSM": {"eps": EPS}, "PGDL2": {"eps": 0.6, "alpha": 0.15}}.get(name, {"eps": EPS, "alpha": 0.03})
    torch.manual_seed(0)
    theirs = getattr(library, name)(model, **given)(images, labels)
    ours = getattr(torchattacks, name)(model, **given)(images, labels)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    check(ours, images, given["eps"], 2 if name == "PGDL2" else math.inf)
    assert accuracy(model, ours, labels) <= accuracy(model, theirs, labels)


# foolbox.


def test_foolbox_readme(model, batch):
    images, labels = batch
    fmodel = fb.PyTorchModel(model, bounds=(0, 1))
    assert fb.accuracy(fmodel, images, labels) == 1.0
    epsilons = [0.0, 0.3, 0.1]
    raw, clipped, success = fb.attacks.LinfPGD(steps=5, rel_stepsize=0.3)(fmodel, images, labels, epsilons=epsilons)
    assert (len(raw), len(clipped), success.shape, success.dtype) == (3, 3, (3, N), torch.bool)
    for adv, eps, broken in zip(clipped, epsilons, success, strict=True):
        check(adv, images, eps)
        assert torch.equal(model(adv).argmax(dim=1) != labels, broken)
    single = fb.attacks.FGSM()(fmodel, images, labels, epsilons=0.1)
    assert [one.shape for one in single] == [images.shape, images.shape, (N,)]


def test_what_is_broken_at_one_radius_is_broken_at_larger_ones():
    """One pixel at 0.5, and a class that wins between 0.55 and 0.65 only: one step of 0.4 goes past it."""

    class Bump(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            value = 0.05 - (x.flatten(1) - 0.6).abs()
            return torch.cat([torch.zeros_like(value), value], dim=1)

    x, y = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0])
    fmodel = fb.PyTorchModel(Bump(), (0, 1))
    assert not fb.attacks.FGSM()(fmodel, x, y, epsilons=0.4)[2]
    assert fb.attacks.FGSM()(fmodel, x, y, epsilons=[0.4, 0.1])[2][:, 0].tolist() == [True, True]


def test_foolbox_minimal(model, batch):
    images, labels = batch
    fmodel = fb.PyTorchModel(model, bounds=(0, 1))
    raw, clipped, success = fb.attacks.L2FMNAttack(steps=12)(fmodel, images, labels, epsilons=[None, 0.2])
    assert torch.equal(raw[0], raw[1])
    assert torch.equal(raw[0], clipped[0])
    check(clipped[1], images, 0.2, 2)
    assert (success[1] <= success[0]).all()


def test_foolbox_targets_repeats_bounds_and_preprocessing(batch):
    """Pixels of 0 to 255 and a model whose logits are the first three of them."""
    x = torch.tensor([[[[230.0, 128.0, 26.0]]], [[[26.0, 230.0, 128.0]]]])
    fmodel = fb.PyTorchModel(nn.Flatten(), (0, 255), preprocessing={"mean": [0.0], "std": [255.0], "axis": -3})
    assert float(fmodel(x).max()) == pytest.approx(230 / 255)
    targets = fb.TargetedMisclassification(torch.tensor([2, 0]))
    attack = fb.attacks.LinfPGD(steps=3, rel_stepsize=0.5).repeat(2)
    adv, _, success = attack(fmodel, x, targets, epsilons=120.0)
    assert success.all()
    assert adv.flatten(1).argmax(dim=1).tolist() == [2, 0]
    assert (adv - x).abs().max() <= 120.001
    with pytest.raises(InputError, match="bounds"):
        attack(fmodel, x + 100, targets, epsilons=1.0)
    with pytest.raises(InputError, match="L2FMNAttack"):
        attack(fmodel, x, targets, epsilons=None)
    with pytest.raises(InputError, match="does not have foolbox's BoundaryAttack"):
        fb.attacks.BoundaryAttack()


@pytest.mark.parametrize("name", ["LinfPGD", "L2PGD", "LinfFastGradientAttack"])
def test_beside_foolbox(model, batch, name):
    images, labels = batch
    library = peer("foolbox")
    torch.manual_seed(0)
    radii = [0.02, EPS] if name[:2] == "Li" else [0.3, 1.5]  # no image ends near the boundary: rounding decides nothing
    theirs = getattr(library.attacks, name)()(library.PyTorchModel(model, (0, 1)), images, labels, epsilons=radii)
    ours = getattr(fb.attacks, name)()(fb.PyTorchModel(model, (0, 1)), images, labels, epsilons=radii)
    for mine, yours in zip(ours[:2], theirs[:2], strict=True):
        assert [(one.shape, one.dtype) for one in mine] == [(one.shape, one.dtype) for one in yours]
    assert (ours[2].shape, ours[2].dtype) == (theirs[2].shape, theirs[2].dtype)
    assert (ours[2].sum(dim=1) >= theirs[2].sum(dim=1)).all()


def test_a_model_of_foolbox_itself(model, batch):
    images, labels = batch
    library, eagerpy = peer("foolbox"), peer("eagerpy")
    wrapped = library.PyTorchModel(model, bounds=(0, 1))
    given = eagerpy.astensors(images, labels)
    _, clipped, success = fb.attacks.LinfPGD(steps=3)(wrapped, *given, epsilons=[EPS])
    assert type(success) is type(clipped[0]) is type(given[0])
    towards = library.TargetedMisclassification(labels)
    assert fb.attacks.LinfPGD(steps=1)(wrapped, images, towards, epsilons=EPS)[2].all()


# RobustBench.


def test_robustbench_readme(batch, capsys):
    images, labels = batch
    model = robustbench.load_model("digits-robust", dataset="cifar10", threat_model="Linf")
    clean, robust = robustbench.benchmark(
        model, n_examples=6, dataset=(images, labels), threat_model="Linf", eps=EPS, batch_size=6, device="cpu"
    )
    assert capsys.readouterr().out == "Clean accuracy: 100.00%\n"
    found = tmifpe.evaluate(model, (images[:6], labels[:6]), Threat("linf", EPS), batch_size=6)
    assert (clean, robust) == (found.clean_accuracy, found.robust_accuracy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threat_model": "corruptions", "eps": 0.1}, "Linf and L2"),
        ({}, "need eps"),
        ({"eps": 0.1, "to_disk": True}, "store"),
        ({"eps": 0.1, "dataset": "cifar11"}, "cifar10"),
    ],
)
def test_what_robustbench_has_and_we_have_not_is_refused(model, options, said):
    with pytest.raises(InputError, match=said):
        robustbench.benchmark(model, **options)
