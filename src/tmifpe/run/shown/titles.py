"""What to call the models of several runs: one name may stand for several weights."""

from __future__ import annotations

__all__ = ["model_titles", "weights_of"]

from collections.abc import Sequence
from pathlib import PurePath

from tmifpe.run.spec import RunSpec

_DIGITS = 6  # of an identity


def model_titles(specs: Sequence[RunSpec]) -> list[str]:
    """The name of each model; where models of one name differ, with its weights file, or else a hash of what it is."""
    kinds: dict[str, dict[str, RunSpec]] = {}
    for spec in specs:
        kinds.setdefault(spec.model, {})[spec.model_identity] = spec
    told = {name: _told_apart(list(models.values())) for name, models in kinds.items()}
    return [told[spec.model][spec.model_identity] for spec in specs]


def weights_of(spec: RunSpec) -> str:
    """The file that was given as weights; empty where none was, and for runs of 0.1, which do not say."""
    given = (option.partition("=") for option in spec.model_options)
    return next((value for name, _, value in given if name == "weights"), "")


def _told_apart(models: Sequence[RunSpec]) -> dict[str, str]:
    """Titles of different models that share a name, by identity."""
    if len(models) == 1:
        return {models[0].model_identity: models[0].model}
    files = _tails([weights_of(spec) for spec in models])
    titles = [f"{spec.model} ({file})" if file else spec.model for spec, file in zip(models, files, strict=True)]
    return {
        spec.model_identity: title if titles.count(title) == 1 else f"{title} #{spec.model_identity[:_DIGITS]}"
        for spec, title in zip(models, titles, strict=True)
    }


def _tails(paths: Sequence[str]) -> list[str]:
    """The names of files, with as many folders before them as tell them apart.

    >>> _tails(["a/best.pt", "b/best.pt", ""])
    ['a/best.pt', 'b/best.pt', '']
    """
    parts = [PurePath(path).parts for path in paths]
    most = max(map(len, parts), default=1)
    for count in range(1, most + 1):
        tails = ["/".join(each[-count:]) for each in parts]
        if len(set(tails)) == len(set(paths)):
            return tails
    return list(paths)
