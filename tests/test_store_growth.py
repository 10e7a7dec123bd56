"""A store outlives the version that wrote it: one of 0.1.0 read today, today's read by a version that has grown."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tmifpe
from tests.masked import Honest, Wrapped, images, noise
from tests.stores import ask as ask_again
from tests.stores import environment, small_disk
from tmifpe.cli import app
from tmifpe.losses import LOSSES
from tmifpe.run import frozen_defaults
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.shard import ShardResult
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store import Store, StoreError, schema
from tmifpe.store.columns import columns_digest
from tmifpe.store.export import outcomes_file
from tmifpe.store.files import read_shard
from tmifpe.store.recorder import StoreRecorder
from tmifpe.store.repair import repair

HERE = Path(__file__).resolve().parent
OLD = HERE / "old_stores" / "0.1.0"
EXPECTED: list[dict[str, Any]] = json.loads((HERE / "old_stores" / "expected-0.1.0.json").read_text())
SHARDS = 16
LINF = tmifpe.Threat("linf", 0.15)
PGD = tmifpe.PGD
FP64 = "fp64"

LOSS_DEFAULTS: dict[str, dict[str, Any]] = {
    "ce": {},
    "ce-margin": {},
    "cw": {},
    "dlr": {},
    "mifpe": {"T": 1.0},
    "pm": {},
    "tmifpe": {"t_rule": "exact", "lam": None},
    "tmifpe-naive": {"t_rule": "exact", "lam": None},
}

# What `old_stores/make.py` asked, by the key that 0.1.0 gave it: how to ask for it today, and the shards left to do.
REQUESTS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "0cb0ded46d1b4edf": ({"attack": PGD(steps=5), "limit": 24}, []),
    "042331d1eeb083f2": ({"attack": PGD(loss="ce", steps=5), "limit": 24}, [2]),
    "c1a6847751b6a6d7": ({"attack": PGD(loss="cw", steps=5), "limit": 16, "verify": FP64, "mode": "strongest"}, []),
    "98cb8ed9330cd4a9": (
        {"attack": [PGD(loss="ce", steps=3), tmifpe.GAMA(steps=5)], "limit": 16, "targets": "second", "seed": 3},
        [],
    ),
    "b45bb8752b4a16ed": ({"attack": PGD(), "threat": tmifpe.Threat("l2", 0.5), "limit": 16}, []),
    "0b8a1b490fa37168": ({"attack": "autoattack", "limit": 4, "checks": False, "shard_size": None}, []),
    "06350c5a2211a9dd": (
        {"attack": "fgsm", "limit": 8, "precision": "fp64", "checks": False, "eot": 2, "repeats": 2},
        [],
    ),
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that were computed, for each is saved."""
    shards: list[int] = []
    kept = StoreRecorder.save

    def save(self: StoreRecorder, result: ShardResult) -> None:
        shards.append(result.shard)
        kept(self, result)

    monkeypatch.setattr(StoreRecorder, "save", save)
    return shards


def ask(store: Path, **options: Any) -> tmifpe.Result:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")
    # 0.1.0 had neither early exits nor tuned copies.
    chosen: dict[str, Any] = {"threat": LINF, "shard_size": 8, "batch_size": 8, "early_exit": False, "tune": "off"}
    return tmifpe.evaluate(model, data, store=store, **(chosen | options))


def columns(text: str) -> dict[str, list[str]]:
    rows = list(csv.DictReader(io.StringIO(text)))
    return {name: [row[name] for row in rows] for name in rows[0]}


def check_reads_as_expected(folder: Path, finished: bool = True) -> None:
    """Every run as 0.1.0 read it; a repaired one comes back unfinished."""
    store = Store(folder)
    runs = {(run.key, run.attempt): run for run in store.runs()}
    names = [run["name"] for run in EXPECTED]
    assert sorted(run.name for run in runs.values()) == sorted(names)
    for told in EXPECTED:
        run = store.find(told["name"])
        result = store.result(run)
        assert (run.key, run.spec.key(), run.done) == (told["key"], told["key"], told["done"])
        assert (run.finished is not None) == (told["finished"] and finished)
        assert run.superseded == told["superseded"]
        assert (result.robust, result.tally.forwards, result.tally.backwards) == (
            told["robust"],
            told["forwards"],
            told["backwards"],
        )
        assert run.spec.attacks == tuple(told["attacks"])
        assert run.spec.verify == {"float64": "fp64"}.get(told["verify"], told["verify"])
        expected, found = columns(told["csv"]), columns(b"".join(outcomes_file(store, run, "csv")).decode())
        assert list(expected) == list(frozen_defaults.OLD_COLUMNS)
        assert {name: found[name] for name in expected} == expected
        assert list(found) == Outcomes.columns()
        assert set(found["clean_margin"] + found["clean_gap"] + found["adv_gap"]) == {"nan"}
        assert sum(len(part) for part in store.adv(run)) == told["done"]
        assert store.sessions(run)[0].versions["tmifpe"] == "0.1.0"


def database(folder: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "runs.sqlite", isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


class TestOfVersion010:
    def test_opens_lists_and_exports_without_a_change(self, old: Path) -> None:
        before = (old / "runs.sqlite").read_bytes()
        check_reads_as_expected(old)
        assert (old / "runs.sqlite").read_bytes() == before, "reading does not migrate"

    def test_read_only(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "2m") as disk:
            shutil.copytree(OLD, disk / "old")
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            check_reads_as_expected(disk / "old")
            with pytest.raises(StoreError, match="cannot be written"):
                ask(disk / "old", attack=PGD(steps=1), limit=8, checks=False)
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)

    def test_on_the_command_line(self, old: Path) -> None:
        def told(*words: str) -> Any:
            done = CliRunner().invoke(app, ["runs", *words, "--store", str(old)])
            assert done.exit_code == 0, done.output
            return json.loads(done.stdout)

        assert [run["run"] for run in told("list", "--all", "--json")["runs"]] == [run["name"] for run in EXPECTED]
        for run in EXPECTED:
            assert told("show", run["name"], "--json")["done"] == run["done"]
            rows = told("export", run["name"], "--format", "json")["outcomes"]
            assert [row["index"] for row in rows] == [int(index) for index in columns(run["csv"])["index"]]
            assert {row["clean_gap"] for row in rows} == {None}

    @pytest.mark.parametrize("key", REQUESTS)
    def test_resumes(self, old: Path, saved: list[int], key: str) -> None:
        options, missing = REQUESTS[key]
        if options["attack"] == "autoattack":
            installed = pytest.importorskip("pyautoattack").__version__
            if not any(f"pyautoattack={installed})" in attack for run in EXPECTED for attack in run["attacks"]):
                pytest.skip("another pyautoattack is another attack")
        result = ask(old, **options)
        assert saved == missing, "no finished shard is computed again"
        assert result.resumed == len(result.outcomes) - 8 * len(missing)
        assert result.to_json()["key"] == key
        (told,) = [run for run in EXPECTED if run["key"] == key and not run["superseded"]]
        expected = columns(told["csv"])
        assert result.outcomes.fooled[: told["done"]].tolist() == [text == "True" for text in expected["fooled"]]
        assert len(Store(old).runs()) == len(EXPECTED), "and no other run is begun"
        run = Store(old).find(key)
        assert (run.done, run.finished is not None) == (run.plan.n, True)
        saved.clear()
        assert ask(old, keep_adv=True, **options).adv is not None
        assert saved == []

    def test_written_to_it_gains_what_it_lacks(self, old: Path) -> None:
        ask(old, attack=PGD(steps=1), limit=8, checks=False)
        assert database(old, "PRAGMA user_version") == [(2,)], "0.1.0 says that it was written by a newer tmifpe"
        there = [row[1] for row in database(old, "PRAGMA table_info(outcomes)")]
        assert there == ["run", "position", *Outcomes.columns()]
        lists = database(old, "SELECT columns IS NULL, count(*) FROM shards GROUP BY 1 ORDER BY 1")
        assert lists == [(0, 1), (1, SHARDS)]
        Store(old).remove(Store(old).runs()[-1])
        check_reads_as_expected(old)

    def test_migrates_completely_or_not_at_all(self, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bad = {**schema.LATER, "sessions": {"note": "TEXT NOT NULL"}}  # SQLite refuses it, after the rest was added
        with monkeypatch.context() as later:
            later.setattr(schema, "LATER", bad)
            with pytest.raises(StoreError):
                ask(old, attack=PGD(steps=1), limit=8, checks=False)
        assert database(old, "PRAGMA user_version") == [(1,)]
        assert "plan" not in [row[1] for row in database(old, "PRAGMA table_info(runs)")]
        check_reads_as_expected(old)

    @pytest.mark.parametrize("damage", ["deleted", "spoilt"])
    def test_repair_recovers_every_shard(self, old: Path, saved: list[int], damage: str) -> None:
        path = old / "runs.sqlite"
        if damage == "deleted":
            path.unlink()
        else:
            path.write_bytes(b"no database " * 1000)
        mended = repair(old)
        assert (mended.runs, mended.shards, mended.unreadable) == (len(EXPECTED), SHARDS, ())
        check_reads_as_expected(old, finished=False)
        options, missing = REQUESTS["042331d1eeb083f2"]
        assert ask(old, **options).resumed == 16
        assert saved == missing

    def test_repair_refuses_a_changed_header(self, old: Path) -> None:
        path = next((old / "adv" / "042331d1eeb083f2-1").glob("*.safetensors"))
        whole = path.read_bytes()
        path.write_bytes(whole.replace(rb"\"seed\": 0", rb"\"seed\": 7"))
        assert path.read_bytes() != whole
        mended = repair(old)
        assert (mended.shards, len(mended.unreadable)) == (SHARDS - 1, 1)


@pytest.fixture
def spec(old: Path) -> RunSpec:
    return Store(old).find("0cb0ded46d1b4edf").spec


class TestKeys:
    def test_what_has_its_frozen_default_is_left_out(self, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        later = {"pgd": {"warm_up": 0}, "autoattack": {"rho": 0.5}}
        monkeypatch.setattr(frozen_defaults, "ATTACK_OPTIONS", later)

        def key(*added: str) -> str:
            attack = spec.attacks[0].removesuffix(")") + "".join(f",{option}" for option in added) + ")"
            return replace(spec, attacks=(attack,)).key()

        assert key() == key("warm_up=0") == key("warm_up=0.0") == spec.key()
        assert len({key(), key("warm_up=1"), key("warm_up=2"), key("other=0")}) == 4
        versions = [f"autoattack(batch_size=250,pyautoattack={version},rho=0.5)" for version in ("1.1", "1.10")]
        assert len({replace(spec, attacks=(attack,)).key() for attack in versions}) == 2, "text stays text"

    def test_old_words_make_the_old_key(self, spec: RunSpec) -> None:
        today, before = replace(spec, verify="fp64"), replace(spec, verify="float64")
        assert today.key() == before.key() != spec.key()
        assert RunSpec.from_dict(before.as_dict()) == today

    def test_fields_of_other_versions(self, spec: RunSpec) -> None:
        plain = spec.as_dict()
        assert RunSpec.from_dict({**plain, "flavour": "sweet"}) == spec
        del plain["cut"]
        assert RunSpec.from_dict(plain) == spec
        del plain["eot"]
        with pytest.raises(KeyError):
            RunSpec.from_dict(plain)

    def test_every_later_field_has_a_frozen_default(self, old: Path) -> None:
        written = set(json.loads(database(old, "SELECT spec FROM runs")[0][0]))
        assert set(RunSpec.__dataclass_fields__) == written | set(frozen_defaults.SPEC_FIELDS)

    @pytest.mark.parametrize(("cut", "found"), [("8/8", 3), ("8/4", 0), ("4/8", 0)])
    def test_a_cut_is_part_of_the_key(self, old: Path, spec: RunSpec, cut: str, found: int) -> None:
        """A run of 0.1.0, which did not know the cut, counts if it was cut in the same way."""
        uncut, spec = spec, replace(spec, cut=cut)
        assert spec.keys() == (spec.key(), uncut.key())
        assert spec.key() != uncut.key()
        plan = Plan(24, *map(int, cut.split("/")))
        assert plan.cut == cut
        recorder = Store(old).recorder()
        try:
            assert recorder.begin(spec, plan, "cpu") == plan
            assert recorder.key() == (uncut if found else spec).key()
            assert len(list(recorder.recall(with_adv=True))) == found
        finally:
            recorder.close()
        assert len(Store(old).runs()) == len(EXPECTED) + (not found)

    def test_a_result_shows_the_key_that_it_is_stored_under(self, tmp_path: Path) -> None:
        """Of a randomised model, which 0.1.0 stored without the cut in its key; here the run is not finished."""

        def noisy() -> tmifpe.Result:
            x = images(16)
            asked: dict[str, Any] = {"store": tmp_path, "batch_size": 8, "shard_size": 8, "checks": False}
            return tmifpe.evaluate(Wrapped(noise), (x, Honest()(x).argmax(dim=1)), LINF, PGD(steps=1), **asked)

        first = noisy()
        uncut = replace(first.spec, cut="")
        assert first.to_json()["key"] == first.spec.key() != uncut.key()
        plain = uncut.as_dict()
        del plain["cut"]
        with closing(sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)) as connection:
            written = (uncut.key(), json.dumps(plain))
            connection.execute("UPDATE runs SET key = ?, spec = ?, finished = NULL, result = NULL", written)
        again = noisy()
        assert again.resumed == 16
        assert again.to_json()["key"] == uncut.key() == Store(tmp_path).runs()[0].key
        assert Store(tmp_path).result(Store(tmp_path).find(uncut.key())).to_json()["key"] == uncut.key()


def test_a_loss_means_what_it_meant() -> None:
    """A run is stored under the options of its loss that differ from these: `mifpe` alone means T = 1 for ever."""
    ours = {name: LOSSES.get(name) for name in LOSSES if LOSSES.get(name).__module__.startswith("tmifpe.losses.")}
    found = {name: {field.name: field.default for field in fields(cast(Any, loss))} for name, loss in ours.items()}
    assert found == LOSS_DEFAULTS, (
        "a default of a loss has changed, and stored runs would come back as if they had been computed with the new "
        "one: keep the default and register the variant under its own name. A new option is added to LOSS_DEFAULTS "
        "with the value that changes nothing."
    )


class TestNumbersThatSqliteDoesNotKeep:
    odd = np.array([0xFFF8 << 48, 0x7FF8 << 48 | 5, 1 << 63, 0x3FF0 << 48], dtype=np.uint64).view(np.float64)

    def test_digest(self) -> None:
        plain = np.array([np.nan, np.nan, 0.0, 1.0])
        assert columns_digest({"margin": self.odd}) == columns_digest({"margin": plain})
        assert columns_digest({"margin": self.odd}) != columns_digest({"margin": plain[::-1].copy()})

    def test_round_trip(self, spec: RunSpec, tmp_path: Path) -> None:
        outcomes = Outcomes.blank(4)
        outcomes.clean_gap[:] = outcomes.margin[:] = self.odd
        for _ in range(2):
            recorder = Store(tmp_path / "new").recorder()
            recorder.begin(spec, Plan(4, 4, 4), "cpu")
            read = list(recorder.recall(with_adv=True))
            if not read:
                recorder.save(ShardResult(0, outcomes, torch.zeros(4, 1, 2, 2)))
            recorder.close()
        np.testing.assert_array_equal(read[0].outcomes.clean_gap, [np.nan, np.nan, 0.0, 1.0])
        np.testing.assert_array_equal(read[0].outcomes.clean_margin, [np.nan] * 4)


def test_a_changed_header_is_noticed(tmp_path: Path) -> None:
    ask_again(tmp_path, limit=8)
    (path,) = (tmp_path / "adv").rglob("*.safetensors")
    read_shard(path)
    path.write_bytes(path.read_bytes().replace(rb"\"seed\": 0", rb"\"seed\": 7"))
    with pytest.raises(StoreError, match="header does not match"):
        read_shard(path)


# The next version, as this one with a few lines more: a field of RunSpec, an option of PGD, an outcome column.
GROWTH = {
    "run/spec.py": (r'(    cut: str = ""\n)', r'\1    flavour: str = "plain"\n'),
    "attacks/pgd.py": (r"(    random_start: bool = True\n)", r"\1    warm_up: int = 0\n"),
    "run/outcomes.py": (
        r"(\n    @property\n    def correct\(self\) -> bool)",
        r"    warmth: int = field(metadata=_column(np.int32, blank=7, absent=-1))\n\1",
    ),
    "run/frozen_defaults.py": (
        r'("cut": "",\n)((?:.|\n)*"pgd": \{)',
        r'\1    "flavour": "plain",\n\2"warm_up": 0, ',
    ),
}

SCRIPT = """
import json, sys
from pathlib import Path
import tmifpe
from tmifpe.store.repair import repair

def ask(store, loss, limit, **options):
    result = tmifpe.evaluate(
        tmifpe.load_model("digits-robust"), tmifpe.load_data("digits"), tmifpe.Threat("linf", 0.15),
        tmifpe.PGD(loss=loss, **options), limit=limit, store=store, shard_size=8, batch_size=8, checks=False,
        early_exit=False, tune="off")
    return [result.spec.key(), result.resumed, result.outcomes.warmth.tolist()]

old, lost = Path(sys.argv[1]), Path(sys.argv[2])
print(json.dumps({
    "file": tmifpe.__file__,
    "repaired": repair(lost).shards,
    "finished": ask(old, "tmifpe", 24, steps=5),
    "unfinished": ask(old, "ce", 24, steps=5),
    "today": ask(old, "ce", 16, steps=2),
    "new": ask(old, "cw", 16, steps=2),
    "warm": ask(old, "cw", 16, steps=2, warm_up=1),
    "runs": len(tmifpe.Store(lost).runs()),
}))
"""


def grow(folder: Path) -> Path:
    source = Path(tmifpe.__file__).parent
    grown = Path(shutil.copytree(source, folder / "tmifpe", ignore=shutil.ignore_patterns("__pycache__")))
    for name, (where, what) in GROWTH.items():
        text, places = re.subn(where, what, (grown / name).read_text(encoding="utf-8"), count=1)
        assert places == 1, f"{name} has changed: say in GROWTH where it can grow"
        (grown / name).write_text(text, encoding="utf-8")
    return folder


def test_a_version_that_has_grown(old: Path, tmp_path: Path, saved: list[int]) -> None:
    """It resumes what 0.1.0 and today's version stored; and this one resumes, exports and repairs what it stores."""
    lost = Path(shutil.copytree(OLD, tmp_path / "lost"))
    (lost / "runs.sqlite").unlink()
    today = ask(old, attack=PGD(loss="ce", steps=2), limit=16, checks=False)
    assert saved == [0, 1]
    source = grow(tmp_path / "grown")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, old, lost],
        env=environment(old) | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("file").startswith(str(source) + os.sep)
    new_key, warm_key = told["new"][0], told["warm"][0]
    assert told == {
        "repaired": SHARDS,
        "finished": ["0cb0ded46d1b4edf", 24, [-1] * 24],
        "unfinished": ["042331d1eeb083f2", 16, [-1] * 16 + [7] * 8],
        "today": [today.spec.key(), 16, [-1] * 16],
        "new": [new_key, 0, [7] * 16],
        "warm": [warm_key, 0, [7] * 16],
        "runs": len(EXPECTED),
    }
    saved.clear()
    reads_what_was_stored(old, saved, new_key, warm_key)
    before = database(old, "SELECT run, position, warmth FROM outcomes ORDER BY 1, 2")
    (old / "runs.sqlite").unlink()
    mended = repair(old)
    assert (mended.shards, mended.unreadable) == (SHARDS + 2 + 1 + 2 + 2, ())
    after = database(old, "SELECT warmth FROM outcomes WHERE warmth IS NOT NULL")
    assert after == [(7,)] * (8 + 16 + 16), "what this version does not know is kept"
    assert len(after) == sum(warmth is not None for *_, warmth in before)
    reads_what_was_stored(old, saved, new_key, warm_key)


def reads_what_was_stored(folder: Path, saved: list[int], new_key: str, warm_key: str) -> None:
    again = ask(folder, attack=PGD(loss="cw", steps=2), limit=16, checks=False, keep_adv=True)
    assert (again.spec.key(), again.resumed, saved) == (new_key, 16, []), "the same question has the same key"
    assert ask(folder, **REQUESTS["042331d1eeb083f2"][0]).resumed == 24
    store = Store(folder)
    warm = store.find(warm_key)
    assert "warm_up=1" in warm.spec.attacks[0]
    assert list(columns(b"".join(outcomes_file(store, warm, "csv")).decode())) == Outcomes.columns()
    assert sum(len(part) for part in store.adv(warm)) == 16


def test_the_old_stores_stay_small() -> None:
    files = [path for path in (HERE / "old_stores").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
