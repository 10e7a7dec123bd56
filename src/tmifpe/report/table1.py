"""Table 1 as text, from the plain values of `tmifpe table1 --json` or of a file that holds them."""

from __future__ import annotations

__all__ = ["heading", "latex", "markdown"]

from collections.abc import Sequence
from typing import Any

from tmifpe.report.comparison import significance, time_ratio

_NORMS = {"linf": "ℓ∞", "l2": "ℓ2"}
_DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}


def heading(row: dict[str, Any]) -> str:
    """What a row is about, in one line."""
    threat = f"{_NORMS[row['norm']]} {row['eps']}"
    return f"{_DATASETS[row['dataset']]}, {row['defense']}, {row['architecture']} ({threat})"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table per measured row, then the missing ones with what they need."""
    measured = [row for row in rows if row["status"] == "measured"]
    missing = [row for row in rows if row["status"] == "missing"]
    parts = [_block(row) for row in measured]
    if missing:
        lines = ["| row | command | needs |", "|---|---|---|"]
        lines += [
            f"| {_cell(heading(row))} | `tmifpe table1 --rows {row['id']}` | {_cell(row['needs'])} |" for row in missing
        ]
        parts.append("### Not measured\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _block(row: dict[str, Any]) -> str:
    many = len(row["seeds"]) > 1
    heads = ["column", "measured", "printed", "difference", "95 % interval"]
    heads += ["min", "max", "all seeds together"] if many else []
    lines = [f"| {' | '.join([*heads, 'seconds'])} |", "|---|" + "---:|" * len(heads)]
    clean = row["clean"]
    cells = ["clean", _percent(clean["measured"]), _percent(clean["printed"]), _signed(clean["difference"])]
    lines.append(f"| {' | '.join(cells + [''] * (len(heads) - 3))} |")
    for name, column in row["columns"].items():
        low, high = column["interval"]
        cells = [
            _cell(name),
            _percent(column["measured"]),
            _percent(column["printed"]),
            _signed(column["difference"]),
        ]
        cells.append(f"{_percent(low)} to {_percent(high)}")
        if many:
            several = len(column["values"]) > 1  # AutoAttack is measured at the first seed only
            cells += [_percent(column[key]) if several else "" for key in ("min", "max", "worst_case")]
        cells.append(f"{column['seconds'][0]:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    seeds = ", ".join(str(seed) for seed in row["seeds"])
    said = f"{row['n']} images, seed{'s' if many else ''} {seeds}."
    seconds = {name: sum(column["seconds"]) / len(column["seconds"]) for name, column in row["columns"].items()}
    notes = [said, *row["remarks"], significance(row["pairs"], row["seeds"]), time_ratio(seconds)]
    notes += [f"Note: {row['note']}."] if row["note"] else []
    return f"### {heading(row)}\n\n" + "\n".join(lines) + "\n\n" + " ".join(note for note in notes if note)


def latex(rows: Sequence[dict[str, Any]]) -> str:
    """One tabular in the layout of the paper: per column the measured value, the printed one in parentheses."""
    names = list(dict.fromkeys(name for row in rows for name in row.get("columns", {})))
    heads = ["Data", "Defense", "Architecture", "Clean", *(_tex(name) for name in names)]
    lines = [
        "% Robust accuracy in percent: measured (printed in the paper).",
        rf"\begin{{tabular}}{{lll{'r' * (len(names) + 1)}}}",
        r"\hline",
        " & ".join(heads) + r" \\",
        r"\hline",
    ]
    for row in rows:
        cells = [_tex(_DATASETS[row["dataset"]]), _tex(row["defense"]), _tex(row["architecture"])]
        if row["status"] == "measured":
            columns = row["columns"]
            cells += [_both(row["clean"]), *(_both(columns[name]) if name in columns else "--" for name in names)]
        else:
            cells += [f"-- ({_percent(row['printed']['clean'])})", *(["--"] * len(names))]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _both(column: dict[str, Any]) -> str:
    printed = f" ({_percent(column['printed'])})" if column["printed"] is not None else ""
    return _percent(column["measured"]) + printed


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _tex(text: str) -> str:
    special = {
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "\\": r"\textbackslash{}",
    }
    return "".join(special.get(character, character) for character in text)
