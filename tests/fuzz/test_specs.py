"""Names, options, budgets: whatever text spells them, they are understood exactly or refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.fuzzing import NASTY, fuzz, mix, tried
from tmifpe.attacks import ATTACKS, attack_spelling, get_attack
from tmifpe.attacks.schedules import SCHEDULES, get_schedule
from tmifpe.core.options import parse, spell, split_list
from tmifpe.core.types import Threat
from tmifpe.data import DATA, load_data
from tmifpe.losses import LOSSES, get_loss, spelling
from tmifpe.models import MODELS, load_model
from tmifpe.norms import NORMS, get_norm
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.spec import PRECISIONS, Plan, RunSpec, get_precision
from tmifpe.theory.formats import FORMATS, format_of

NUMBERS = ["0", "1", "-1", "2", "0.5", "1e-320", "1e308", "1e400", "nan", "inf", "-0.0", "1" + "0" * 30, "9" * 400]
VALUES = st.one_of(
    st.sampled_from([*NUMBERS, "true", "false", "none", "exact", "one-step", "cosine", "iterate", "ce", "mifpe(T=3)"]),
    st.floats().map(str),
    st.integers().map(str),
    mix(),
)
KEYS = st.sampled_from(
    [
        "T",
        "t_rule",
        "lam",
        "loss",
        "steps",
        "restarts",
        "schedule",
        "step_size",
        "momentum",
        "momentum_on",
        "random_start",
        "weight",
        "decay",
        "batch_size",
        "name",
        "x",
        "self",
        "cls",
        "__class__",
    ]
)
NAMES = st.sampled_from([*LOSSES, *ATTACKS, "nothing", "", "Ce", "ce ", "pgd.x"])


@st.composite
def spelled(draw: st.DrawFn) -> str:
    options = draw(st.lists(st.tuples(KEYS, VALUES), max_size=3))
    inside = draw(st.sampled_from([",", ", ", ";", " ,"])).join(f"{key}={value}" for key, value in options)
    return draw(NAMES) + (f"({inside})" if options or draw(st.booleans()) else "")


TEXTS = spelled() | mix(*LOSSES, *ATTACKS)


def same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@fuzz(60, 800, text=TEXTS)
def test_what_is_parsed_is_spelled_and_parsed_again(text: str) -> None:
    found = tried(lambda: parse(text))
    if found is None:
        return
    name, options = parse(spell(*found))
    assert name == found[0]
    assert options.keys() == found[1].keys()
    assert all(same(options[key], found[1][key]) for key in options)


@fuzz(25, 200, parts=st.lists(spelled(), max_size=4))
def test_a_list_of_spellings_is_split_where_it_was_joined(parts: list[str]) -> None:
    whole = [part.strip() for part in parts if part.strip() and "," not in part.partition("(")[0]]
    balanced = [part for part in whole if tried(lambda part=part: parse(part))]
    assert split_list(",".join(balanced)) == balanced


@fuzz(40, 400, text=TEXTS)
def test_loss(text: str) -> None:
    loss = tried(lambda: get_loss(text))
    if loss is not None:
        assert get_loss(spelling(loss)) == loss


@fuzz(40, 400, text=TEXTS)
def test_attack(text: str) -> None:
    attack = tried(lambda: get_attack(text))
    if attack is not None:
        assert get_attack(attack_spelling(attack)) == attack
        assert 0 < attack.budget.forwards < 2**32


@fuzz(25, 200, text=TEXTS)
def test_column(text: str) -> None:
    found = tried(lambda: resolve_attack(text))
    if found is not None:
        assert resolve_attack(attack_spelling(found)) == found


ODD = st.sampled_from([None, True, 5, -1.5, 10**400, b"ce", (), [], {}, object, ["ce"], math.nan])


@fuzz(25, 120, thing=ODD | mix("linf", "l2", "cosine", "fp16", "fp8-e4m3"))
def test_names_of_every_kind(thing: Any) -> None:
    for find, known in (
        (get_norm, NORMS),
        (get_schedule, SCHEDULES),
        (get_precision, PRECISIONS),
        (format_of, FORMATS),
        (get_loss, LOSSES),
        (get_attack, ATTACKS),
    ):
        found = tried(lambda find=find: find(thing))
        assert found is None or (isinstance(thing, str) and thing.strip().partition("(")[0].strip() in known)


BUDGETS = ODD | st.floats() | st.integers() | mix("0.3", "8/255", "4/-255", "1e-320", "0x10", "3/4/5", " 1/2 ")


@fuzz(40, 700, norm=mix("linf", "L2"), eps=BUDGETS, low=BUDGETS, high=BUDGETS)
def test_threat(norm: str, eps: Any, low: Any, high: Any) -> None:
    threat = tried(lambda: Threat(norm, eps, low, high))
    if threat is not None:
        assert 0 <= threat.eps < math.inf
        assert -math.inf < threat.low < threat.high < math.inf
        assert Threat(**dataclasses.asdict(threat)) == threat


@fuzz(
    25,
    400,
    text=st.text(max_size=20) | st.sampled_from(NASTY),
    eps=st.floats(0, 1e6),
    seed=st.integers(-(2**64), 2**64),
    n=st.integers(1, 10**9),
)
def test_run_spec_survives_json(text: str, eps: float, seed: int, n: int) -> None:
    spec = tried(
        lambda: RunSpec(text, text, text, text, Threat("linf", eps), (text,), text, text, seed, text, 1, text, n, n)
    )
    if spec is None:
        assert not 0 <= seed < 2**63
        return
    again = RunSpec.from_dict(json.loads(json.dumps(spec.as_dict())))
    assert again == spec
    assert again.key() == spec.key()
    assert dataclasses.replace(spec, seed=seed ^ 1).key() != spec.key()


@fuzz(20, 150, n=st.integers(1, 500), batch=st.integers(-2, 600), shard=st.integers(-2, 600))
def test_plan_covers_every_position_once(n: int, batch: int, shard: int) -> None:
    plan = tried(lambda: Plan(n, batch, shard))
    if plan is not None:
        assert [p for k in range(len(plan)) for p in plan.positions(k)] == list(range(n))


# Sources that ask a hub or import the user's code are named elsewhere, with what they must refuse.
ASIDE = ("hf", "timm", "robustbench", "torchvision", "factory")


@fuzz(25, 200, head=mix(*(s for s in DATA if s not in ASIDE)), rest=mix(".", "nowhere", "train"), limit=ODD)
def test_data_of_any_name(head: str, rest: str, limit: Any) -> None:
    if head.partition(":")[0].strip() in ASIDE:
        return
    limit = limit if isinstance(limit, int) else None
    found = tried(lambda: load_data(f"{head}:{rest}", limit=limit))
    assert found is None or len(found) > 0


@fuzz(25, 200, head=mix(*(s for s in MODELS if s not in ASIDE)), rest=mix(".", "nowhere.onnx"), weights=mix("w.pt"))
def test_model_of_any_name(head: str, rest: str, weights: str) -> None:
    if head.partition(":")[0].strip() in ASIDE:
        return
    assert tried(lambda: load_model(f"{head}:{rest}", weights=weights)) is None
