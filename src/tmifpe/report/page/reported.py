"""What is reported: the result of a run, and what is known of it besides."""

from __future__ import annotations

__all__ = ["Picture", "Reported", "short_attack", "titled"]

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import stage_name
from tmifpe.run.shown.titles import model_titles


@dataclass(frozen=True)
class Picture:
    """One example of the gallery. The images are data URIs; an empty one is not at hand."""

    row: int
    """Its place among the outcomes."""
    clean: str = ""
    change: str = ""
    """adv - clean, amplified around grey."""
    adv: str = ""
    clean_share: str = ""
    """What the model gives to its prediction, in words: a probability, or what the gap says of it."""
    adv_share: str = ""
    also: tuple[str, ...] = ()
    """Why it was chosen: `nearest`, `fragile`, `confident`."""


@dataclass(frozen=True)
class Reported:
    """A run with its gallery. All but `result` may be missing, as it is for a result that was never stored."""

    result: Result
    run: str = ""
    """Its name in the store."""
    started: str = ""
    finished: str = ""
    sessions: tuple[str, ...] = ()
    """The processes that worked on it: versions and machine, a line each."""
    pictures: tuple[Picture, ...] = field(default=(), repr=False)
    pictures_note: str = ""
    """Where the images come from, or why there are none."""
    title: str = ""
    """What its model is called among those of other runs."""

    @property
    def model(self) -> str:
        return self.title or self.result.spec.model

    @property
    def attack(self) -> str:
        """The attack in the few words that fit a table."""
        return short_attack(self.result)

    @property
    def threat(self) -> str:
        threat = self.result.spec.threat
        return f"{threat.norm} {threat.eps:.6g}{threat.within}"


def titled(reports: Sequence[Reported]) -> list[Reported]:
    """The same runs, with names that tell their models apart."""
    titles = model_titles([one.result.spec for one in reports])
    return [replace(one, title=title) for one, title in zip(reports, titles, strict=True)]


def short_attack(result: Result) -> str:
    """`full`, or name, loss and steps of every stage; `x5` are five restarts."""
    spec = result.spec
    title = spec.attack_title
    words = [title] if spec.is_named or "(" not in title else ["; ".join(map(stage_name, spec.attacks))]
    words += [f"to {spec.targets}"] if spec.targets != "none" else []
    return " ".join([*words, f"seed {spec.seed}"] if spec.seed else words)
