"""Images and labels of every kind: outcomes that add up and can be checked again, or one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tmifpe
from tests.fuzz.fuzzing import fuzz, mix, tried
from tests.fuzz.tensors import FLOATING, Made, tensors
from tmifpe.data import as_data, subset
from tmifpe.run.result import Result

CLASSES = 3
SHAPE = (1, 2, 2)


class Tiny(nn.Module):
    """The first three pixels of an image, weighted: three classes, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([3.0, 2.0, 2.5]))

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x.flatten(1), (0, CLASSES))[:, :CLASSES] * self.scale


MODEL = Tiny()
IMAGES = st.integers(0, 4).map(lambda n: (n, *SHAPE))
SHAPES = IMAGES | IMAGES | IMAGES | st.lists(st.integers(0, 4), max_size=6).map(tuple)
LABELS = st.lists(st.integers(0, 2), max_size=4) | st.lists(st.integers(-2, 2**40), max_size=4)
KINDS = ("fitting", "fitting", "fitting", "any", "float", "bool", "int32", "column", "list", "numpy", "meta", "none")
EPS = st.sampled_from([0.0, 1e-320, 1e-9, 0.1, 0.5, 1.0, 1e6])
NORMS = st.sampled_from(["linf", "l2"])


def labels_for(x: Any, kind: str, drawn: list[int]) -> Any:
    n = len(x) if isinstance(x, Tensor) and x.dim() else 2
    fitting = torch.tensor([(drawn[k % len(drawn)] if drawn else k) % CLASSES for k in range(n)], dtype=torch.int64)
    kinds: dict[str, Any] = {"fitting": fitting, "any": torch.tensor(drawn, dtype=torch.int64), "none": None}
    kinds |= {"float": fitting.float(), "bool": fitting.bool(), "int32": fitting.int(), "column": fitting[:, None]}
    kinds |= {"list": fitting.tolist(), "numpy": fitting.numpy(), "meta": fitting.to("meta")}
    return kinds[kind]


def check_result(result: Result, x: Tensor, threat: tmifpe.Threat) -> None:
    """Robust, broken and wrong are all there is; every broken one is broken when read again, and within reach."""
    outcomes, adv = result.outcomes, result.adv
    assert adv is not None
    wrong = int((~outcomes.correct & outcomes.counted).sum())
    assert result.robust + result.broken + wrong == result.n
    assert len(outcomes) == len(x)
    assert torch.isfinite(adv).all()
    assert ((adv >= 0) & (adv <= 1)).all()
    delta = (adv.double() - x.detach().double()).flatten(1)
    size = delta.abs().amax(dim=1) if threat.norm == "linf" else delta.norm(dim=1)
    assert (size <= threat.eps + 1e-5).all()
    predicted = MODEL(adv.float()).argmax(dim=1).numpy()
    assert (predicted[outcomes.fooled] != outcomes.label[outcomes.fooled]).all()
    assert math.isfinite(result.robust_accuracy)


@fuzz(
    30,
    700,
    made=tensors(SHAPES, good=0.7),
    labels=st.tuples(st.sampled_from(KINDS), LABELS),
    norm=NORMS,
    eps=EPS,
    options=st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["verdict", "strongest", "fast"]),
            "targets": st.sampled_from(["second", "random", 1, -1, 99, 1.5, [0, 1], np.array([0, 1]), "x", True]),
            "precision": st.sampled_from(["fp64", "fp32", "bf16", "fp16", "fp8", 5]),
            "limit": st.sampled_from([1, 2, 10**30, 0, -1, 1.5, "3"]),
            "indices": st.sampled_from([[0], [1, 0], [0, 0], [9], [-1], [1.5], ["a"], [], range(2), None]),
            "seed": st.sampled_from([0, 2**63 - 1, 2**63, -1, 1.5, None, "x"]),
            "batch_size": st.sampled_from([1, 10**30, 0, 1.5]),
            "eot": st.sampled_from([1, 2, 0, 10**9]),
            "device": st.sampled_from(["cpu", "meta", "tpu9", "cuda:99", "", "\0", 5]),
            "verify": st.sampled_from(["float64", "float32", "x"]),
            "name": st.sampled_from(["[red]", "\ud800", ""]),
            "nonsense": st.just(1),
        },
    ),
)
def test_evaluate(made: Made, labels: tuple[str, list[int]], norm: str, eps: float, options: dict[str, Any]) -> None:
    x = made.tensor
    threat, attack = tmifpe.Threat(norm, eps), tmifpe.PGD(steps=1)
    y = labels_for(x, *labels)
    before = x.detach().clone() if x.layout is torch.strided and not x.is_meta else None
    result = tried(lambda: tmifpe.evaluate(MODEL, (x, y), threat, attack, keep_adv=True, checks=False, **options))
    if result is None:
        return
    assert before is not None
    assert torch.equal(x.detach(), before)
    scaled = x.float() / 255 if x.dtype == torch.uint8 else x
    rows = torch.from_numpy(result.outcomes.index)
    check_result(result, scaled[rows], threat)


@fuzz(8, 40, made=tensors(IMAGES, good=0.9), labels=st.tuples(st.just("fitting"), LABELS), norm=NORMS, eps=EPS)
def test_evaluate_with_checks(made: Made, labels: tuple[str, list[int]], norm: str, eps: float) -> None:
    x, threat = made.tensor, tmifpe.Threat(norm, eps)
    y = labels_for(x, *labels)
    result = tried(lambda: tmifpe.evaluate(MODEL, (x, y), threat, ["cw", "fgsm"], keep_adv=True))
    if result is not None:
        check_result(result, x.float() / 255 if x.dtype == torch.uint8 else x, threat)
        assert all(flag.name and flag.seen and flag.advice for flag in result.flags)


ATTACKS = st.sampled_from(["pgd(steps=2)", "pgd(steps=1,restarts=2,loss=cw)", "fgsm", "mim(steps=2)", "gama(steps=2)"])


@fuzz(
    30,
    600,
    made=tensors(SHAPES, good=0.7),
    labels=st.tuples(st.sampled_from(KINDS), LABELS),
    attack=ATTACKS,
    norm=NORMS,
    eps=EPS,
    seed=st.sampled_from([0, 0, 0, -1, 2**63, None, 1.5]),
    batch=st.sampled_from([256, 1, 0, 1.5]),
)
def test_attack(
    made: Made, labels: tuple[str, list[int]], attack: str, norm: str, eps: float, seed: Any, batch: Any
) -> None:
    x, threat, run = made.tensor, tmifpe.Threat(norm, eps), tmifpe.get_attack(attack)
    y = labels_for(x, *labels)
    adv = tried(lambda: run(MODEL, x, y, threat, seed=seed, batch_size=batch))  # pyright: ignore[reportCallIssue]
    if adv is None:
        return
    assert x.dtype in FLOATING
    assert (adv.shape, adv.dtype, adv.requires_grad) == (x.shape, x.dtype, False)
    assert ((adv >= 0) & (adv <= 1)).all()
    delta = (adv.double() - x.detach().double()).flatten(1)
    size = delta.abs().amax(dim=1) if norm == "linf" else delta.norm(dim=1)
    assert (size <= eps + 16 * torch.finfo(x.dtype).eps).all()
    assert MODEL.scale.requires_grad


class Rows(Dataset[Any]):
    """A Dataset that gives what it was made of, whatever that is."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> Any:
        return self.rows[position]


EXAMPLES = st.sampled_from(
    [
        (torch.rand(1, 2, 2), 1),
        (torch.rand(1, 2, 2), torch.tensor(2)),
        (torch.rand(3, 2, 2), 0),
        (np.zeros((2, 2), np.uint8), np.int64(1)),
        (np.zeros((2, 2)), 1),
        ([[1, 2], [3]], 1),
        (torch.rand(1, 2, 2), math.inf),
        (torch.rand(1, 2, 2), math.nan),
        (torch.rand(1, 2, 2), 10**400),
        (torch.rand(1, 2, 2), "1"),
        (torch.rand(1, 2, 2), torch.tensor([1, 2])),
        (torch.rand(1, 2, 2) * math.nan, 1),
        (torch.rand(1, 2, 2, device="meta"), 1),
        (torch.rand(1, 2, 2),),
        None,
        "image",
        5,
    ]
)


@fuzz(20, 250, rows=st.lists(EXAMPLES, max_size=3), loader=st.sampled_from([None, {}, {"batch_size": 2}, "shuffle"]))
def test_datasets_of_anything(rows: list[Any], loader: Any) -> None:
    given: Any = Rows(rows)
    if loader is not None and rows:
        given = DataLoader(given, **({"shuffle": True} if loader == "shuffle" else loader), collate_fn=lambda b: b[0])

    def read() -> tuple[Tensor, Tensor]:
        data = as_data(given)
        return data.fetch(range(len(data)))

    found = tried(read)
    if found is not None:
        x, y = found
        assert x.dtype in FLOATING
        assert ((x >= 0) & (x <= 1)).all()
        assert y.dtype == torch.int64
        assert (y >= 0).all()


ODD = st.sampled_from(
    [None, 5, "mnist:x", [], (), (1,), ([1], [2]), object(), iter([]), {}, TensorDataset(), b"x", set]
)


@fuzz(15, 150, made=tensors(SHAPES), labels=st.tuples(st.sampled_from(KINDS), LABELS), odd=ODD, swap=st.booleans())
def test_data_of_any_type(made: Made, labels: tuple[str, list[int]], odd: Any, swap: bool) -> None:
    data = tried(lambda: as_data(odd if swap else (made.tensor, labels_for(made.tensor, *labels))))
    if data is None:
        return
    x = tried(lambda: data.fetch(range(len(data))))
    if x is not None:
        assert ((x[0] >= 0) & (x[0] <= 1)).all()
        tried(lambda: data.identity)


@fuzz(15, 200, indices=st.lists(st.integers(-3, 6) | mix("0", "a/b.png") | st.none() | st.floats(), max_size=4))
def test_subsets_of_anything(indices: list[Any]) -> None:
    data = as_data((torch.rand(4, *SHAPE), torch.arange(4) % CLASSES))
    found = tried(lambda: subset(data, indices))
    if found is not None:
        assert list(found.indices) == [int(index) for index in indices]


MODELS = st.sampled_from(
    [
        None,
        "digits-robust",
        5,
        nn.Linear(2, 2),
        nn.Identity(),
        nn.Linear(2, 3, device="meta"),
        lambda x: None,
        lambda x: x,
        lambda x: x.flatten(1).sum(1),
        lambda x: x.flatten(1)[:, :3].long(),
        lambda x: x.flatten(1)[:, :0],
        lambda x: x.flatten(1)[:1, :3],
        lambda x: x.flatten(1)[:, :3] * math.nan,
        lambda x: x.flatten(1)[:, :3] * math.inf,
        lambda x: x.flatten(1)[:, :1],
        lambda x: x.flatten(1)[:, :2],
        lambda x: (x.flatten(1)[:, :3],),
        lambda x: x.flatten(1)[:, :3].detach(),
        lambda x: x.flatten(1)[:, :3].to(torch.complex64),
        lambda x: x.flatten(1)[:, :3].to(torch.float16),
    ]
)


@fuzz(15, 60, model=MODELS, verb=st.sampled_from(["evaluate", "audit", "compare"]), threat=st.sampled_from([0, 0.3]))
def test_models_of_any_kind(model: Any, verb: str, threat: float) -> None:
    data = (torch.full((2, *SHAPE), 0.5) + torch.arange(4).reshape(1, 1, 2, 2) / 10, torch.tensor([2, 1]))
    broken = isinstance(model, nn.Linear | nn.Identity) and not any(p.is_meta for p in model.parameters())
    try:
        if verb == "audit":
            found = tried(lambda: tmifpe.audit(model, data))
        elif verb == "compare":
            found = tried(
                lambda: tmifpe.compare(model, data, tmifpe.Threat("linf", threat), ["ce", "dlr"], tmifpe.PGD(steps=1))
            )
        else:
            found = tried(lambda: tmifpe.evaluate(model, data, tmifpe.Threat("linf", threat), tmifpe.PGD(steps=1)))
    except RuntimeError:
        assert broken  # the user's own network, called with images it was not made for, fails in its own words
        return
    assert found is None or found.to_json()


@fuzz(
    10,
    100,
    threat=st.sampled_from([None, 0.3, "linf", ("linf", 0.3)]),
    attack=st.sampled_from([None, 5, "x", object, [], [None]]),
)
def test_threats_and_attacks_of_any_type(threat: Any, attack: Any) -> None:
    data = (torch.rand(2, *SHAPE), torch.tensor([0, 1]))
    assert tried(lambda: tmifpe.evaluate(MODEL, data, threat)) is None
    assert tried(lambda: tmifpe.evaluate(MODEL, data, tmifpe.Threat("linf", 0.1), attack)) is None
