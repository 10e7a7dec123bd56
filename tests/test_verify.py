"""`tmifpe verify`: adversarial examples of others, counted only where they are allowed and work."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import tmifpe
from tmifpe.cli import app
from tmifpe.store.adversarial import ENDINGS, adv_file, read_adv, threat_beside

THREAT = tmifpe.Threat("linf", 0.25)


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))


def brightness() -> nn.Module:
    """Class 1 where the one pixel is above one half: what breaks it can be read off."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [2.0]]))
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    return nn.Sequential(nn.Flatten(), model)


X = torch.tensor([0.25, 0.375, 0.75, 1.0, 0.0, 0.75]).reshape(-1, 1, 1, 1)
Y = torch.tensor([0, 0, 1, 1, 0, 0])  # the last one is misclassified to begin with
#                     broken  stays  broken, outside  outside the box  NaN     was wrong
ADV = torch.tensor([0.5625, 0.25, 0.375, 1.125, float("nan"), 0.625]).reshape(-1, 1, 1, 1)


def test_every_point_is_judged_by_ball_box_and_answer() -> None:
    adv = ADV.clone()
    adv[0] = 0.5 + 2**-10  # 0.2509 away: outside
    found = tmifpe.verify(brightness(), (X, Y), THREAT, adv)
    assert found.in_ball.tolist() == [False, True, False, True, False, True]
    assert found.in_box.tolist() == [True, True, True, False, False, True]
    assert not found.broken.any()
    wider = tmifpe.verify(brightness(), (X, Y), tmifpe.Threat("linf", 0.3125), ADV)
    assert wider.broken.tolist() == [True, False, False, False, False, False]
    assert wider.fools.tolist() == [True, False, True, False, False, False]
    assert (wider.clean_accuracy, wider.robust_accuracy) == (5 / 6, 4 / 6)
    told = wider.to_json()
    assert (told["inside"], told["outside_ball"], told["outside_box"]) == (3, 2, 2)
    assert (told["indices_broken"], told["indices_fooled_outside"]) == ([0], [2])


def test_the_rounding_of_eps_is_no_offence() -> None:
    x = torch.full((1, 1, 1, 1), 0.3)
    found = tmifpe.verify(brightness(), (x, torch.tensor([0])), tmifpe.Threat("linf", 0.1), x + torch.tensor(0.1))
    assert found.inside.all()


def test_examples_are_matched_by_index_or_by_the_full_set() -> None:
    threat = tmifpe.Threat("linf", 0.3125)
    by_index = {"adv": ADV[[2, 0]], "indices": torch.tensor([2, 0])}
    found = tmifpe.verify(brightness(), (X, Y), threat, by_index)
    assert (found.index.tolist(), found.broken.tolist()) == ([0, 2], [True, False])
    whole = tmifpe.verify(brightness(), (X, Y), threat, ADV, indices=[2, 0])
    assert (whole.index.tolist(), whole.broken.tolist()) == ([2, 0], [False, True])
    assert tmifpe.verify(brightness(), (X, Y), threat, ADV.numpy()).broken.sum() == 1  # pyright: ignore[reportArgumentType]
    assert "2 adversarial examples: 1 inside ball and box, 1 break" in repr(found)
    with pytest.raises(tmifpe.InputError, match="2 adversarial examples for 6 images"):
        tmifpe.verify(brightness(), (X, Y), threat, ADV[:2])
    with pytest.raises(tmifpe.InputError, match="none of these"):
        tmifpe.verify(brightness(), (X, Y), threat, by_index, indices=[1, 3])
    with pytest.raises(tmifpe.InputError, match="other data"):
        tmifpe.verify(brightness(), (X, Y), threat, by_index | {"labels": torch.tensor([0, 0])})
    with pytest.raises(tmifpe.InputError, match=r"shape \(n, 1, 1, 1\)"):
        tmifpe.verify(brightness(), (X, Y), threat, ADV[:, 0])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_says_under_which_threat_it_was_made(tmp_path: Path, ending: str) -> None:
    result = tmifpe.evaluate(brightness(), (X, Y), THREAT, tmifpe.PGD(steps=1), keep_adv=True, checks=False)
    path = tmp_path / f"adv{ending}"
    path.write_bytes(adv_file(result, ending))
    tensors = read_adv(str(path))
    assert threat_beside(tensors) == THREAT
    assert tmifpe.verify(brightness(), (X, Y), THREAT, tensors).notes == ()
    (note,) = tmifpe.verify(brightness(), (X, Y), tmifpe.Threat("l2", 0.25), tensors).notes
    assert "were made under linf 0.25, and they are read under l2 0.25" in note


def test_verify_remarks_on_what_looks_like_a_mistake() -> None:
    notes = tmifpe.verify(brightness(), (X, Y), tmifpe.Threat("linf", 8), X).notes
    assert "no model can be robust" in notes[0]
    (note,) = tmifpe.verify(brightness(), (X, Y), THREAT, X.flip(0)).notes
    assert "another order" in note
    assert threat_beside({"threat": torch.tensor([255, 0], dtype=torch.uint8)}) is None


def test_points_that_are_no_numbers_are_named() -> None:
    found = tmifpe.verify(brightness(), (X, Y), THREAT, ADV)
    (note,) = found.notes
    assert note.startswith("The points of 1 example (4) hold NaN")
    told = found.to_json()
    assert (told["not_a_number"], told["largest_size"]) == (1, 0.375)
    nothing = tmifpe.verify(brightness(), (X, Y), THREAT, torch.full_like(X, torch.nan))
    assert nothing.to_json()["largest_size"] is None
    assert "6 examples" in nothing.notes[0]


def test_eight_bits_and_other_units_are_remarked_on() -> None:
    threat, x = tmifpe.Threat("linf", 0.1), torch.tensor([0.25, 0.2512]).reshape(-1, 1, 1, 1)
    y, exact = torch.tensor([0, 0]), x + 0.1
    rounded = (exact * 255).round() / 255  # the second one up, and out of the ball
    assert tmifpe.verify(brightness(), (x, y), threat, exact).notes == ()
    (note,) = tmifpe.verify(brightness(), (x, y), threat, rounded).notes
    assert "rounded to 8 bits, and 1 lie outside the ball" in note
    (note,) = tmifpe.verify(brightness(), (x, y), threat, exact + 0.001).notes  # as far, and not rounded
    assert "outside the ball" in note
    assert "8 bits" not in note
    told, again = tmifpe.verify(brightness(), (x, y), threat, (rounded * 255).round().byte()).notes
    assert told == "The file holds bytes, which are read as 255ths of the box [0, 1]."
    assert "rounded to 8 bits" in again
    (note,) = tmifpe.verify(brightness(), (x, y), threat, (rounded * 255).round()).notes
    assert "All points lie outside the box [0, 1]" in note
    assert "divide them by 255" in note
    (note,) = tmifpe.verify(brightness(), (x, y), threat, exact - 2).notes
    assert "undo their normalisation" in note


def test_labels_of_other_data_are_remarked_on() -> None:
    threat = tmifpe.Threat("linf", 0.3125)
    assert tmifpe.verify(brightness(), (X, Y), threat, {"adv": X, "labels": Y}).notes == ()
    (note,) = tmifpe.verify(brightness(), (X, Y), threat, {"adv": X, "labels": 1 - Y}).notes
    assert note.startswith("The labels in the file differ from those of the data on 6 of 6 examples")


@pytest.mark.filterwarnings("error")
def test_a_pickle_and_a_tuple_are_refused_with_how_to_save_examples(tmp_path: Path) -> None:
    (tmp_path / "claim.pkl").write_bytes(pickle.dumps({"adv": ADV.numpy()}))
    torch.save((ADV, Y), tmp_path / "claim.pt")
    for name in ("claim.pkl", "claim.pt"):
        with pytest.raises(tmifpe.InputError, match=r"torch.save\(\{'adv': adv") as caught:
            read_adv(str(tmp_path / name))
        assert "state_dict" not in str(caught.value)


def test_an_archive_of_one_array_needs_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "adv.npz", ADV.numpy())
    assert read_adv(str(tmp_path / "adv.npz"))["adv"].shape == ADV.shape


def written(folder: Path, adv: Tensor, indices: Tensor) -> dict[str, Path]:
    """The same examples in every form in which people hand them over."""
    files = {name: folder / name for name in ("a.safetensors", "a.npz", "a.pt", "bare.pt", "autoattack.pt", "one.npz")}
    save_file({"adv": adv, "indices": indices}, files["a.safetensors"])
    np.savez(files["a.npz"], adv=adv.numpy(), indices=indices.numpy())
    torch.save({"adv": adv, "indices": indices}, files["a.pt"])
    torch.save(adv, files["bare.pt"])
    torch.save({"adv_complete": adv}, files["autoattack.pt"])
    np.savez(files["one.npz"], x_adv=adv.numpy())
    return files


def call(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def test_files_of_every_kind_united_with_a_stored_run(tmp_path: Path) -> None:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=40)
    x, y = data.fetch(range(40))
    threat = tmifpe.Threat("linf", 0.15)
    adv = tmifpe.PGD(steps=20)(model, x, y, threat, seed=1)
    words = ["--data", "digits", "--limit", "40", "--eps", "0.15"]
    weak = json.loads(call("evaluate", "digits-robust", *words, "--attack", "fgsm", "--no-checks", "--json").stdout)
    here = ["--model", "digits-robust", *words, "--run", weak["key"], "--json"]
    files = written(tmp_path, adv, torch.arange(40)).values()
    found = [json.loads(call("verify", str(file), *here).stdout) for file in files]
    with torch.no_grad():
        right, wrong = model.module(x).argmax(1) == y, model.module(adv).argmax(1) != y
    for told in found:
        assert told["indices_broken"] == found[0]["indices_broken"]
        assert told["inside"] == 40
        alone = set(told["indices_broken"])
        assert len(alone) == told["broken"] > 0
        assert alone == set(torch.nonzero(right & wrong)[:, 0].tolist())
        assert told["robust_accuracy"] == pytest.approx(told["clean_accuracy"] - len(alone) / 40)
        assert set(told["indices_only_these"]) <= alone
        assert told["united_accuracy"] == pytest.approx(weak["robust_accuracy"] - len(told["indices_only_these"]) / 40)
        assert len(told["indices_only_these"]) > 0
    table = " ".join(call("verify", str(tmp_path / "bare.pt"), *here[:-1]).stdout.split())
    assert f"{100 * found[0]['united_accuracy']:.2f} %" in table
    assert ", ".join(map(str, found[0]["indices_only_these"][:3])) in table
    for option, value, wanted in (("--eps", "0.2", "at linf 0.15"), ("--limit", "39", "other examples")):
        other = list(here)
        other[other.index(option) + 1] = value
        assert wanted in call("verify", str(tmp_path / "a.pt"), *other, code=2).stderr
    another = [word.replace("digits-robust", "digits-distilled") for word in here]
    assert "another model" in call("verify", str(tmp_path / "a.pt"), *another, code=2).stderr


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "adv.pt").write_bytes(pickle.dumps(Evil()))
    told = call("verify", str(tmp_path / "adv.pt"), "--model", "digits-robust", code=2)
    assert "cannot read adversarial examples" in told.stderr
    told = call("verify", str(tmp_path / "absent.npz"), "--model", "digits-robust", code=2)
    assert "error: no such file: " in told.stderr
    np.save(tmp_path / "bare.npy", ADV.numpy())
    told = call("verify", str(tmp_path / "bare.npy"), "--model", "digits-robust", code=2)
    assert "numpy.savez" in told.stderr
    assert not (tmp_path / "ran").exists()


def test_the_box_of_the_command_line_is_the_threats(tmp_path: Path) -> None:
    x, _ = tmifpe.load_data("digits", limit=8, box=(-1, 1)).fetch(range(8))
    torch.save((x + 0.25).clamp(max=1), tmp_path / "adv.pt")
    words = ["--model", "digits-robust", "--mean", "-1", "--std", "2", "--limit", "8", "--eps", "0.25", "--json"]
    found = json.loads(call("verify", str(tmp_path / "adv.pt"), *words, "--box=-1,1").stdout)
    assert (found["box"], found["inside"]) == ([-1, 1], 8)  # in [0, 1], the background of -1 would be outside
