"""Verbs of the command line: nothing twice, options by title, and a hint for what people type."""

from __future__ import annotations

__all__ = ["ENGINE", "GATES", "OUTPUT", "THE_PAPER", "TRUST", "WHAT", "WITH", "Command", "Verbs"]

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from tmifpe.core.errors import InputError

WHAT, WITH, TRUST, GATES, OUTPUT = "What to attack", "With what", "Trust", "Gates for a CI", "Output"
ENGINE = "Where it is computed"
"""The titles of options, in the order in which --help shows them."""
THE_PAPER = "From the paper"

_HINTS = {
    "--attack": "--losses takes attacks too, as in --losses tmifpe,gama,ce+gama",
    "--loss": "--losses takes them, separated by commas",
    "--losses": "--loss takes one loss; tmifpe compare takes several",
    "--seeds": "--seed takes one; several: tmifpe compare MODEL --losses full --seeds 0,1,2",
    "--config": "options stand on the command line; many runs stand in a plan file: tmifpe run plan.toml",
    "--eps": "the largest radius is --to, and --at takes those to state",
    "--epsilon": "the radius is --eps",
    "--dataset": "the data is --data",
    "--model": "the model stands first, without an option: tmifpe {verb} MODEL",
    "--n": "the number of examples is --limit (the first ones) or --sample (drawn from all classes)",
    "--n-examples": "the number of examples is --limit (the first ones) or --sample (drawn from all classes)",
    "--output": "results are printed; --json gives them as JSON, to be redirected to a file",
}
_ELSEWHERE = {
    ("evaluate", "--latex"): "a stored run becomes LaTeX by: tmifpe report latest --format latex",
    ("evaluate", "--markdown"): "--summary FILE writes Markdown, and so does: tmifpe report latest --format md",
    ("run", "--junit"): 'the plan names the file: [outputs] junit = "robust.xml"',
    ("run", "--summary"): 'the plan names the file: [outputs] markdown = "robust.md"',
}
"""What people type with one verb and another one has, or a file."""


class Command(TyperCommand):
    """Refuses an option that takes one value and is given two: the parser would silently keep the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
        except Exception as error:
            raise _hinted(self, ctx, error) from error
        seen: set[str | None] = set()
        for parameter in order:
            if not isinstance(parameter, TyperOption) or parameter.multiple or parameter.count:
                continue
            if parameter.is_flag and not parameter.secondary_opts:  # --json --json says the same thing twice
                continue
            if parameter.name in seen:
                names = " or ".join((*parameter.opts, *parameter.secondary_opts))
                raise InputError(f"{names} is given twice; give it once")
            seen.add(parameter.name)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {
            "Arguments": [],
            WHAT: [],
            WITH: [],
            TRUST: [],
            GATES: [],
            OUTPUT: [],
            ENGINE: [],
            "Options": [],
        }
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        _write(formatter, sections)


class Verbs(TyperGroup):
    """A list of verbs by title, none of whose summaries is cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {}
        for name in self.list_commands(ctx):
            verb: Any = self.get_command(ctx, name)
            title = getattr(verb, "rich_help_panel", None) or "Commands"
            sections.setdefault(title, []).append((name, (verb.help or "").partition("\n\n")[0]))
        _write(formatter, sections)


def _write(formatter: Any, sections: dict[str, list[Any]]) -> None:
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _hinted(command: Command, ctx: Any, error: Exception) -> Exception:
    """For an option that is not there, what does the same, if that is known; else the error as it is."""
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption":
        return error
    if (elsewhere := _ELSEWHERE.get((str(command.name), str(option)))) is not None:
        return InputError(f"tmifpe {command.name} has no {option}; {elsewhere}")
    if option not in _HINTS:
        return error
    hint = _HINTS[option].format(verb=ctx.info_name)
    named = re.search("--[a-z-]+", hint)
    if named and not any(named[0] in parameter.opts for parameter in command.params):
        return error  # the hint is for another verb
    if option == "--config" and "run" in getattr(ctx.parent and ctx.parent.command, "commands", ()):
        hint = "tmifpe run takes a file of settings"
    return InputError(f"tmifpe {command.name} has no {option}; {hint}")
