"""The command that asks for a stored run again."""

from __future__ import annotations

__all__ = ["command"]

import shlex

import numpy as np

from tmifpe.run.result import Result

_GIVEN = "given:"  # how a spec writes targets that were handed over one by one


def command(result: Result) -> str:
    """`tmifpe evaluate ...` with every option that the run's spec names; runs of 0.1 do not name --weights."""
    spec, threat = result.spec, result.spec.threat
    eps = ",".join(map(repr, spec.radii or (threat.eps,)))
    words = [
        "tmifpe",
        "evaluate",
        spec.model,
        *_model_options(result),
        "--data",
        spec.data,
        "--norm",
        threat.norm,
        "--eps",
        eps,
    ]
    words += ["--box", f"{threat.low:g},{threat.high:g}"] if threat.within else []
    words += ["--attack", "+".join(spec.attacks) if spec.attack_title == "; ".join(spec.attacks) else spec.attack_title]
    words += _examples(result)
    usual = {"targets": "none", "mode": "verdict", "seed": 0, "eot": 1, "verify": "none"}
    for name, value in usual.items():
        given = getattr(spec, name)
        if given != value:
            words += [f"--{name}", "FILE" if str(given).startswith(_GIVEN) else str(given)]
    words += ["--precision", spec.precision]
    words += [word for name in spec.straight_through for word in ("--straight-through", name)]
    words += ["--certify"] if spec.certify != "none" else []
    words += ["--batch-size", str(result.plan.batch_size)] if spec.cut else []
    words += ["--shard-size", str(result.plan.shard_size)] if spec.cut else []
    return shlex.join(words)


def _model_options(result: Result) -> list[str]:
    """--weights, --mean and --std."""
    pairs = (option.partition("=") for option in result.spec.model_options)
    return [word for name, _, value in pairs for word in (f"--{name}", value)]


def _examples(result: Result) -> list[str]:
    """Which examples: the first ones, or a file of indices, which `runs export` writes."""
    spec, index = result.spec, result.outcomes.index
    if spec.n == spec.total:
        return []
    first = np.array_equal(index, np.arange(len(index)))
    return ["--limit", str(spec.n)] if first else ["--indices", "FILE"]
