"""A result in words and tables."""

from __future__ import annotations

__all__ = [
    "checks_said",
    "clean_said",
    "examples_said",
    "flags_sheet",
    "headline",
    "result_sheets",
    "stage_name",
    "stages_sheet",
]

from typing import TYPE_CHECKING

from tmifpe.core.errors import InputError
from tmifpe.core.options import parse
from tmifpe.core.shown.sheet import Sheet, percent

if TYPE_CHECKING:
    from tmifpe.run.result import Result


def result_sheets(result: Result) -> list[Sheet]:
    """The numbers, the flags, and what each stage broke and cost; those without rows left out."""
    return [sheet for sheet in (headline(result), flags_sheet(result), stages_sheet(result)) if sheet]


def headline(result: Result) -> Sheet:
    """The numbers that matter, certified ≤ robust ≤ clean."""
    rows = [("clean accuracy", clean_said(result)), ("robust accuracy", _robust_said(result))]
    rows = rows if len(result.outcomes) else []
    if result.certified_accuracy is not None:
        rows.append(
            ("certified accuracy", f"{percent(result.certified_accuracy)} %: no attack of this threat goes below")
        )
    spec = result.spec
    for one in result.radii[:-1] if result.complete else ():
        ends = f"{percent(one.interval[0])} to {percent(one.interval[1])}"
        rows.append((f"robust at eps {one.eps:.6g}", f"{percent(one.robust_accuracy)} % (95 % interval {ends} %)"))
    rows += [
        ("examples", examples_said(result)),
        ("threat", f"{spec.threat.norm}, eps {spec.threat.eps:.6g}{spec.threat.within}"),
        ("attack", spec.attack_title.replace(",", ", ")),
    ]
    if spec.targets != "none" and result.complete:
        rows.append(("success rate", f"{percent(result.success_rate)} % towards {spec.targets}"))
    if spec.verify != "none":
        rows.append((f"in {spec.verify}", f"{len(result.fragile)} fragile: broken in one precision only"))
    if (given := result.transferred) is not None:
        both, alone = percent(given.united_robust_accuracy), percent(given.robust_accuracy)
        rows.append(("with the given examples", f"{both} % robust ({alone} % after those examples alone)"))
    if result.early_exits is not None:
        rows.append(("early exit", str(result.early_exits)))
    if result.repeated:
        rows.append(("further draws", ", ".join(percent(value) for value in result.repeated)))
    rows.append(("checks", checks_said(result)))
    if result.spot_check is not None:
        rows.append(("spot check", f"{result.spot_check.title}: {result.spot_check}"))
    if result.from_model is not None:
        rows.append((f"from {result.from_model.model}", str(result.from_model)))
    return Sheet("Headline", (), tuple(rows))


def clean_said(result: Result) -> str:
    """The clean accuracy, or its bounds; nothing where nothing is known."""
    if result.complete:
        return f"{percent(result.clean_accuracy)} %"
    low, high = map(percent, result.clean_bounds)
    return f"between {low} and {high} %" if len(result.outcomes) else ""


def _robust_said(result: Result) -> str:
    low, high = map(percent, result.interval if result.complete else result.bounds)
    if result.complete:
        return f"{percent(result.robust_accuracy)} % (95 % interval {low} to {high} %)"
    return f"between {low} and {high} % (incomplete: {result.missing} examples have no verdict)"


def examples_said(result: Result) -> str:
    """How many, and how many were broken; of an unfinished run how many there are so far."""
    done = len(result.outcomes)
    if not done:
        return f"0 of {result.missing}"
    every = result.spec.total if result.complete else done + result.missing
    return f"{result.n if result.complete else done} of {every}, of which broken {result.broken}"


def checks_said(result: Result) -> str:
    """Which checks looked for a reason to doubt the number: without all of them, no flag says little."""
    if not result.check_forwards:
        return "none: turned off, or not run yet"
    return f"cut for cost: {'; '.join(result.checks_cut)}" if result.checks_cut else "all"


def stages_sheet(result: Result) -> Sheet:
    """What each stage was given, broke and cost; of AutoAttack also what each part broke."""
    head = ("stage", "attacked", "broke", "robust % after", "seconds", "forwards", "backwards")
    standing, rows = int((result.outcomes.correct & result.outcomes.counted).sum()), []
    for attack, stage in zip(result.spec.attacks, result.stages, strict=False):
        standing -= stage.broken
        after = percent(standing / max(1, result.n)) if result.complete else ""
        costs = (f"{stage.seconds:.1f}", str(stage.forwards), str(stage.backwards))
        rows.append((stage_name(attack), str(stage.examples), str(stage.broken), after, *costs))
    for repair in result.repairs if rows else ():
        standing -= repair.broken
        after = percent(standing / result.n if result.n else 0.0)
        costs = (f"{repair.seconds:.1f}", str(repair.forwards), str(repair.backwards))
        rows.append((f"repair: {repair.name}", str(repair.examples), str(repair.broken), after, *costs))
    if not rows:  # 0.1.0 did not say what a stage costs
        head = ("stage", "broke")
        rows = [
            (stage_name(name) if "(" in name else name, str(len(found))) for name, found in result.broken_by().items()
        ]
    parts = [
        f"{name} {len(found)}"
        for name, found in result.broken_by().items()
        if ": " in name and not name.startswith("repair: ")
    ]
    note = f"Broken by part: {', '.join(parts)}." if parts else ""
    spent, checked = result.spent, result.checked
    total = (
        f"In all {result.seconds + result.check_seconds:.1f} s, {spent.forwards} forwards, {spent.backwards} backwards"
    )
    checks = f", of which {checked.forwards} and {checked.backwards} for checks" if result.check_forwards else ""
    cut = f" Left out of the checks: {'; '.join(result.checks_cut)}." if result.checks_cut else ""
    return Sheet("Stages", head, tuple(rows), f"{note} {total}{checks}.{cut}".strip())


def flags_sheet(result: Result) -> Sheet:
    rows = tuple((flag.name, flag.seen, flag.advice) for flag in result.flags)
    return Sheet("Flags", ("flag", "what was seen", "what to do"), rows)


def stage_name(attack: str) -> str:
    """One stage in a few words; `near` is called by the attack that it runs.

    >>> stage_name("near(attack=pgd(loss=dlr,restarts=5,steps=20),share=0.1)")
    'pgd dlr 20 x5, near'
    """
    try:
        name, options = parse(attack)
    except InputError:  # a spelling of another version
        return attack
    if isinstance(options.get("attack"), str):
        return f"{stage_name(options['attack'])}, {name}"
    words = [name, *(str(options[key]) for key in ("loss", "steps") if key in options)]
    return " ".join([*words, f"x{options['restarts']}"] if options.get("restarts", 1) != 1 else words)
