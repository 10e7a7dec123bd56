"""From a model and data to a robust accuracy, in one call."""

from __future__ import annotations

__all__ = ["evaluate"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from tmifpe.attacks import Attack, as_attack
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.evaluation.prepare import prepare
from tmifpe.run.recorder import Recorder
from tmifpe.run.request import EvaluateOptions, Request, require_threat
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.result import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack


@torch.inference_mode(False)  # an attack needs gradients, wherever it is called
def evaluate(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    attack: Attack | str | Sequence[Attack | str] = "full",
    *,
    recorder: Recorder | None = None,
    **options: Unpack[EvaluateOptions],
) -> Result:
    """Attack every correctly classified example and report how many withstand it.

    model: an `nn.Module`, any callable to logits, or what `load_model` returns; left as it was.
    data: (images, labels), a Dataset, a DataLoader, or what `load_data` returns; images in the threat's box.
    attack: one attack, or several, each run on the survivors of those before it; by name: `full`, `quick`, `paper`
        (the paper's PGD-100), another attack, or a loss for `paper` to climb.
    recorder: where results are kept; `store=` makes the usual one.
    options: targets, mode, seed, precision, eot, limit, sample, indices, batch_size, tune, shard_size, device,
        name, keep_adv, certify, checks, verify, repeats, transfer_adv, store, fresh, radii, straight_through,
        spot_check, from_model, engine, workers, shard, retries, shard_timeout, progress: see `EvaluateOptions`.

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    >>> tmifpe.evaluate(model, (x, y), tmifpe.Threat("linf", 0.0)).broken
    0
    """
    require_threat(threat, "evaluate", data)
    request = Request.of(cast("dict[str, Any]", options))
    several: Sequence[Attack | str] = (
        attack if isinstance(attack, Sequence) and not isinstance(attack, str) else [attack]
    )
    chosen = as_attack(resolve_attack(one) if isinstance(one, str) else one for one in several)
    with prepare(model, data, threat, request) as prepared:
        return prepared.run(chosen, recorder=recorder)
