"""What models return besides logits: read where there is one reading, with a note; else the wrapper to write."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.masked import Honest, images
from tmifpe import PGD, InputError, Threat, evaluate

pytestmark = pytest.mark.usefixtures("unchecked")

THREAT, ATTACK = Threat("linf", 0.05), PGD(steps=5)
Named = namedtuple("Named", ["features", "logits"])


@dataclass
class Record:
    logits: Tensor


class Returning(nn.Module):
    def __init__(self, make: Any, classes: int = 4) -> None:
        super().__init__()
        self.inner, self.make = Honest(classes), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.inner(x), x)


RECORDS = {
    "dict": lambda z, x: {"logits": z, "features": x.flatten(1)},
    "dict of one": lambda z, x: {"out": z},
    "model output": lambda z, x: OrderedDict(loss=z.sum(), logits=z, hidden=x.flatten(1)),
    "tuple": lambda z, x: (z, x),
    "list": lambda z, x: [x, z],
    "named tuple": lambda z, x: Named(x.flatten(1), z),
    "record": lambda z, x: Record(z),
}


@pytest.fixture(scope="module")
def plain() -> tmifpe.Result:
    return evaluate(Honest(), labelled(), THREAT, ATTACK)


def labelled(classes: int = 4) -> tuple[Tensor, Tensor]:
    x = images()
    return x, Honest(classes)(x).argmax(dim=1)


# The checks read a model as the attack does; two kinds show it.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.checked) if kind in ("dict", "tuple") else kind for kind in RECORDS]
)
def test_records_are_read_with_a_note(kind, plain):
    result = evaluate(Returning(RECORDS[kind]), labelled(), THREAT, ATTACK)
    assert result.outcomes.fooled.tolist() == plain.outcomes.fooled.tolist()
    (note,) = result.notes
    assert "the model returns a" in note
    assert plain.notes == ()


def test_a_real_model_output(plain):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    model = Returning(lambda z, x: outputs.ImageClassifierOutput(logits=z))
    result = evaluate(model, labelled(), THREAT, ATTACK)
    assert result.robust_accuracy == plain.robust_accuracy
    assert result.notes == ("the model returns a ImageClassifierOutput, of which 'logits' is used",)


@pytest.mark.parametrize("flat", [pytest.param(True, marks=pytest.mark.checked), False])
def test_one_logit_means_two_classes(flat):
    def one(z: Tensor, x: Tensor) -> Tensor:
        return (z[:, 1] - z[:, 0]) if flat else (z[:, 1:] - z[:, :1])

    two = evaluate(Honest(2), labelled(2), THREAT, ATTACK)
    result = evaluate(Returning(one, 2), labelled(2), THREAT, ATTACK)
    assert result.outcomes.fooled.tolist() == two.outcomes.fooled.tolist()
    assert "one number per image" in result.notes[0]


def test_one_probability_is_not_a_logit():
    model = Returning(lambda z, x: (z[:, 1:] - z[:, :1]).sigmoid(), 2)
    with pytest.raises(InputError, match=r"torch.logit\(model\(x\), eps=1e-6\)"):
        evaluate(model, labelled(2), THREAT, ATTACK)
    undone = evaluate(lambda x: torch.logit(model(x), eps=1e-6), labelled(2), THREAT, ATTACK)
    assert undone.robust_accuracy == evaluate(Honest(2), labelled(2), THREAT, ATTACK).robust_accuracy


def test_log_probabilities_are_noted(plain):
    result = evaluate(Returning(lambda z, x: z.log_softmax(dim=1)), labelled(), THREAT, ATTACK)
    assert result.outcomes.fooled.tolist() == plain.outcomes.fooled.tolist()
    assert "log-probabilities" in result.notes[0]
    negative = evaluate(Returning(lambda z, x: z - 100), labelled(), THREAT, ATTACK)
    assert negative.notes == ()


@pytest.mark.parametrize(
    ("make", "wrapper"),
    [
        (lambda z, x: (x.flatten(1), z), "`lambda x: model(x)[0]`"),
        (lambda z, x: {"a": z, "b": x.flatten(1)}, "`lambda x: model(x)['a']`"),
        (lambda z, x: (z.long(), x), "`lambda x: model(x)[0]`"),
    ],
)
def test_what_could_mean_several_things_is_refused_with_the_wrapper(make, wrapper):
    with pytest.raises(InputError) as caught:
        evaluate(Returning(make), labelled(), THREAT, ATTACK)
    assert wrapper in str(caught.value)
    assert "\n" not in str(caught.value)


def test_audit_compare_and_attacks_read_them_too(plain):
    model = Returning(RECORDS["dict"])
    assert any("'logits' is used" in note for note in tmifpe.audit(model, labelled(), ["tmifpe"], ["fp32"]).notes)
    row = tmifpe.compare(model, labelled(), THREAT, ["tmifpe"], ATTACK)
    assert row.mean("tmifpe") == plain.robust_accuracy
    x, y = labelled()
    adv = ATTACK(model, x, y, THREAT)
    assert (Honest()(adv).argmax(dim=1) != y).sum() == plain.broken


def test_normalize_is_at_hand():
    assert tmifpe.Normalize is tmifpe.models.Normalize
    assert "trained on normalised" in " ".join(tmifpe.Normalize.__doc__.split())
