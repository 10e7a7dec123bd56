"""Makes the store and the expectations beside this file. Runs with tmifpe 0.1.0 only (commit 17f169b).

PYTHONPATH=<checkout of 17f169b>/src python tests/old_stores/make.py
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tmifpe.evaluation.store.export import outcomes_file  # pyright: ignore[reportMissingImports]

import tmifpe

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "0.1.0"


class Stop(Exception):
    """Raised in the third shard, to leave a run unfinished."""


def stop(step: Any) -> None:
    if step.done >= 17:
        raise Stop


def main() -> None:
    if tmifpe.__version__ != "0.1.0" or FOLDER.exists():
        raise SystemExit("this makes a new store, with tmifpe 0.1.0")
    ask()
    with closing(sqlite3.connect(FOLDER / "runs.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (HERE / "expected-0.1.0.json").write_text(json.dumps(expected(), indent=1))


def ask() -> None:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")
    threat, pgd = tmifpe.Threat("linf", 0.15), tmifpe.PGD

    def ev(attack: Any, threat: tmifpe.Threat = threat, **options: Any) -> None:
        chosen: dict[str, Any] = {"store": FOLDER, "shard_size": 8, "batch_size": 8}
        tmifpe.evaluate(model, data, threat, attack, **(chosen | options))

    ev(pgd(steps=5), limit=24)
    with suppress(Stop):
        ev(pgd(loss="ce", steps=5), limit=24, progress=stop)
    ev(pgd(loss="cw", steps=5), limit=16, verify="float64", mode="strongest")
    ev([pgd(loss="ce", steps=3), tmifpe.GAMA(steps=5)], limit=16, targets="second", seed=3)
    ev(pgd(), tmifpe.Threat("l2", 0.5), limit=16)
    ev(pgd(steps=5), limit=24, fresh=True)
    ev("autoattack", limit=4, checks=False, shard_size=None, batch_size=None)
    ev("fgsm", limit=8, precision="fp64", checks=False, eot=2, repeats=2)


def expected() -> list[dict[str, Any]]:
    store = tmifpe.Store(FOLDER)
    return [
        {
            "name": run.name,
            "key": run.key,
            "finished": run.finished is not None,
            "done": run.done,
            "superseded": run.superseded,
            "csv": outcomes_file(store, run, "csv").decode(),
            "robust": (result := store.result(run)).robust,
            "attacks": list(run.spec.attacks),
            "verify": run.spec.verify,
            "forwards": result.tally.forwards,
            "backwards": result.tally.backwards,
        }
        for run in store.runs()
    ]


if __name__ == "__main__":
    main()
