"""An audit on disk: the whole of it as JSON, a CSV row per example, and a figure."""

from __future__ import annotations

__all__ = ["draw_audit", "prepare_folder", "write_audit"]

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tmifpe.audits.shown import plot_audit
from tmifpe.core.errors import InputError
from tmifpe.run.shown.plot import new_figure

if TYPE_CHECKING:
    from tmifpe.audits.audit import Audit


def prepare_folder(folder: str | Path) -> Path:
    """Make the folder, and see that figures can be drawn: before the work, not after it."""
    new_figure(1, 1)
    try:
        target = Path(folder).expanduser()
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a null byte; RuntimeError: the home of nobody
        raise InputError(f"cannot make the folder {folder}: {error}") from error
    return target


def write_audit(audit: Audit, folder: str | Path) -> list[Path]:
    """Write audit.json, audit.csv and audit.png into `folder` (made if need be); returns their paths."""
    target = prepare_folder(folder)
    plain, table, figure = (target / f"audit.{end}" for end in ("json", "csv", "png"))
    try:
        plain.write_text(json.dumps(audit.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        rows = list(audit.rows())
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        draw_audit(audit, figure)
    except OSError as error:
        raise InputError(f"cannot write the audit to {folder}: {error}") from error
    return [plain, table, figure]


def draw_audit(audit: Audit, path: str | Path) -> None:
    """Two panels: the gaps and the thresholds of CE, and what each loss loses in each precision."""
    plot_audit(audit).savefig(path)
