"""Results to report, made up in a moment: no model is run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tmifpe import Flag, Result, Threat
from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.attacks.loop.queries import StageCost, Tally
from tmifpe.evaluation.curve import Curve
from tmifpe.report.page.reported import Picture, Reported
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.spec import Plan, RunSpec

PGD = "pgd(loss=tmifpe,momentum=0.75,random_start=True,restarts=1,schedule=cosine,step_size=2.0,steps=100)"
STAGES = (PGD, "near(attack=multi-targeted(loss=dlr,steps=20),share=0.1)")
HOSTILE = "<script>document.title='owned'</script>\"'><img src=x onerror=\"document.title='owned'\">\u202egnp.tac"
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


def made_up(n: int = 400, classes: int = 10, seed: int = 0, **changes: Any) -> Result:
    """A result whose outcomes are drawn at random; `changes` are to its fields."""
    rng = np.random.default_rng(seed)
    table = Outcomes.blank(n)
    table.index[:] = np.arange(n)
    table.label[:] = np.arange(n) % classes
    right = rng.random(n) < 0.95
    table.clean_pred[:] = np.where(right, table.label, (table.label + 1) % classes)
    table.clean_margin[:] = np.where(right, -rng.exponential(6, n), rng.exponential(1, n))
    table.clean_gap[:] = np.abs(table.clean_margin)
    table.fooled[:] = right & (rng.random(n) < 0.5)
    table.adv_pred[:] = np.where(table.fooled, (table.label + rng.integers(1, classes, n)) % classes, table.clean_pred)
    table.margin[:] = np.where(table.fooled, rng.exponential(1, n), table.clean_margin / 2)
    table.adv_gap[:] = np.abs(table.margin)
    table.stage[:] = np.where(table.fooled, rng.random(n) < 0.1, -1)
    table.steps_used[:] = np.where(table.fooled, rng.integers(1, 100, n), 120)
    table.size[:] = np.where(table.fooled, rng.random(n) * 0.1, 0.0)
    table.marks[table.fooled & (rng.random(n) < 0.05)] |= Mark.FRAGILE
    spec = RunSpec("a model", "m", "some data", "d", Threat("linf", 0.1), STAGES, "none", "verdict", seed, "fp32", 1,
                   "subset", n, n, verify="fp64")  # fmt: skip
    broken = [int((table.fooled & (table.stage == k)).sum()) for k in (0, 1)]
    attacked = int(right.sum())
    stages = (
        StageCost(attacked, broken[0], 9000, 8000, 3.5),
        StageCost(attacked - broken[0], broken[1], 900, 800, 0.5),
    )
    flags = (
        Flag("gradient-dies", "Of 16 images, body.act leaves 80 % without a gradient.", "Try `straight_through`."),
    )
    layers = (LayerGradient("body.act", "Round", 1, none=0.8), LayerGradient("head", "Linear", 1, none=0.0, off=0.1))
    made = Result(spec, Plan(n, 64, 128), table, Tally(9900, 8800), 4.0, flags=flags, stages=stages, layers=layers,
                  key="0123456789abcdef")  # fmt: skip
    return replace(made, **changes)


def hostile(n: int = 60) -> Reported:
    """Every name is an attempt to get out of the text."""
    made = made_up(n)
    spec = replace(made.spec, model=HOSTILE, data=HOSTILE, attacks=(HOSTILE, STAGES[1]))
    flags = (Flag(HOSTILE, HOSTILE, HOSTILE),)
    layers = (LayerGradient(HOSTILE, HOSTILE, 1, none=1.0),)
    names = tuple(f"{HOSTILE}{k}" for k in range(10))
    files = tuple(f"{HOSTILE}/{k}.png" for k in range(n))
    made = replace(made, spec=spec, flags=flags, layers=layers, class_names=names, files=files, notes=(HOSTILE,))
    return replace(
        shown(made), run=HOSTILE, started=HOSTILE, finished=HOSTILE, sessions=(HOSTILE,), pictures_note=HOSTILE
    )


def shown(result: Result, pictures: int = 40) -> Reported:
    """With a gallery of dots."""
    from tmifpe.report.page.gallery import choose

    rows = choose(result.outcomes, pictures)
    made = tuple(Picture(row, DOT, DOT, DOT, "99.1 %", "≤ 71.0 %", also) for row, also in rows.items())
    return Reported(result, "0123456789abcdef", "2026-01-01", "2026-01-02", ("python 3.11, torch 2",), made, "Dots.")


UNBROKEN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def long_name(k: int) -> str:
    """Sixty characters, in turn with and without places to break; the last ones tell the models apart."""
    return f"{UNBROKEN[:56]}{k:04d}" if k % 2 else f"robustbench:cifar10/Linf/A_name_of_sixty_{k:04d}_$_characters"


def made_up_curve(k: int, certify: bool) -> Curve:
    """A curve whose brackets are drawn at random, of a model with a long name."""
    made, rng = made_up(200, seed=k), np.random.default_rng(k)
    table = made.outcomes
    table.broken_at[:] = np.where(table.correct, rng.gamma(2 + k % 5, 0.03, len(table)), 0)
    table.withstood[:] = 0.98 * table.broken_at
    table.certified_to[:] = 0.4 * table.broken_at
    threat, proof = Threat("linf", 0.3), "crown" if certify else "none"
    return Curve(replace(made, spec=replace(made.spec, threat=threat, model=long_name(k), certify=proof)))
