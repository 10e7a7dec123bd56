"""A run for the Hugging Face Hub: `model-index` for a model card, and an entry for the folder `.eval_results`."""

from __future__ import annotations

__all__ = ["HubEntry", "hub_entry", "yaml_text"]

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tmifpe.core.errors import InputError, shown
from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import checks_said
from tmifpe.version import __version__

DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "imagenet": "ILSVRC/imagenet-1k",
    "imagenet-bicubic": "ILSVRC/imagenet-1k",
    "mnist": "ylecun/mnist",
}
"""What the Hub calls our data sources."""
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class HubEntry:
    """Both forms as plain values. Accuracies are fractions; no path of this machine is in them."""

    model_index: list[dict[str, Any]]
    eval_results: list[dict[str, Any]]
    name: str
    """For the file of `eval_results`: the same run has the same one."""


def hub_entry(result: Result, dataset: str | None = None, task: str | None = None, date: str | None = None) -> HubEntry:
    """dataset: its id on the Hub, by default that of the run's data if it is known. task: the benchmark's name for this
    question, by default such as `robust-linf-0.0313725`. date: when it was finished, in ISO 8601."""
    spec, (low, high) = result.spec, result.interval
    if result.part or spec.targets != "none":
        what = "a part of a run" if result.part else "targeted"
        raise InputError(f"the run is {what}; the Hub asks for the robust accuracy of whole, untargeted runs")
    found = dataset if dataset is not None else _dataset(spec.data)
    if found is None or not _ID.fullmatch(found):
        named = f"{shown(found)} is none" if found is not None else "that of this run's data is not known"
        raise InputError(f"the Hub asks for the id of a dataset, and {named}; name the dataset as OWNER/NAME")
    threat, attack = spec.threat, _without_folders(spec.attack_title)
    chosen = task or f"robust-{threat.norm}-{threat.eps:.6g}"
    asked = f"{threat.norm}, eps {threat.eps:.6g}{threat.within}, {attack}"
    settings: dict[str, Any] = {
        "norm": threat.norm,
        "eps": threat.eps,
        "box": list(threat.box),
        "attack": attack,
        "seed": spec.seed,
        "examples": result.n,
        "of": spec.total,
        "interval": [low, high],
        "flags": list(dict.fromkeys(flag.name for flag in result.flags)),
        "checks": checks_said(result),
        "tmifpe": __version__,
        "run": result.key or spec.key(),
    }
    metrics = [
        {"type": "accuracy", "value": result.clean_accuracy, "name": "clean accuracy"},
        {
            "type": "robust_accuracy",
            "value": result.robust_accuracy,
            "name": f"robust accuracy ({asked})",
            "args": settings,
        },
    ]
    where: dict[str, Any] = {"type": found, "name": found}
    split = _split(spec.data)
    where |= {"split": split} if split else {}
    task_of = {"type": "image-classification", "name": "Image Classification"}
    index = [{"name": _model(spec.model), "results": [{"task": task_of, "dataset": where, "metrics": metrics}]}]
    entry: dict[str, Any] = {"dataset": {"id": found, "task_id": chosen}, "value": result.robust_accuracy}
    entry |= {"date": date} if date else {}
    notes = [asked, f"{result.n} of {spec.total} examples", f"95 % interval {low:.4f} to {high:.4f}"]
    notes += [f"flags: {', '.join(settings['flags'])}"] if settings["flags"] else []
    entry["notes"] = "; ".join([*notes, f"tmifpe {__version__}"])
    # A task is free text, and a store may come from anybody: neither may name another folder.
    file = re.sub(r"[^A-Za-z0-9.]+", "-", f"tmifpe-{chosen[:80]}-{settings['run'][:8]}").strip("-.")
    return HubEntry(index, [entry], f"{file}.yaml")


def _dataset(data: str) -> str | None:
    source, _, where = data.partition(":")
    name = where.partition(":")[0] if source == "hf" else DATASETS.get(source)
    return name if name and _ID.fullmatch(name) else None  # hf: also reads folders


def _split(data: str) -> str:
    source, _, where = data.partition(":")
    return where.partition(":")[2] if source == "hf" else ""


def _model(model: str) -> str:
    """The name of a model without its source, or the last part of the path to its file."""
    source, _, name = model.partition(":")
    if source in ("hf", "timm", "robustbench") and _ID.fullmatch(name):
        return name
    return _without_folders(model)


def _without_folders(text: str) -> str:
    """
    >>> _without_folders("pgd(loss=/data/me/my.py:Loss,steps=5)+gama")
    'pgd(loss=my.py:Loss,steps=5)+gama'
    """
    return re.sub(r"[^(),=+]*[/\\]", "", text)


def yaml_text(value: Any) -> str:
    r"""Plain values as YAML: every text is quoted, with what is not plain ASCII escaped, so that a name from a file
    stays a name.

    >>> print(yaml_text([{"a": {"b": 'x: "y"\n- z', "c": [1, 1e-05]}, "d": []}]), end="")
    - a:
        b: "x: \"y\"\u000a- z"
        c:
        - 1
        - 1.0e-05
      d: []
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if isinstance(inner, dict | list) and inner:
                yield f"{key}:"
                yield from (f"{'' if isinstance(inner, list) else '  '}{line}" for line in _lines(inner))
            else:
                yield f"{key}: {next(_lines(inner))}"
    elif isinstance(value, list) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    elif isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, float):
        head, exponent, tail = repr(value).partition("e")
        yield f"{head}.0e{tail}" if exponent and "." not in head else repr(value)  # 1e-05 is text to YAML 1.1
    else:
        yield str(value)  # whole numbers, and what is empty


def _quoted(text: str) -> str:
    def escaped(character: str) -> str:
        code = ord(character)
        if 0xD800 <= code < 0xE000:  # half of a character, which stands for an odd byte in the name of a file
            return "\\ufffd"
        if character in '"\\':
            return f"\\{character}"
        return character if 0x20 <= code < 0x7F else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return f'"{"".join(map(escaped, text))}"'
