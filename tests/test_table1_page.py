"""docs/table1.md says what docs/data says, and the texts made from measurements keep to them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tmifpe.report import comparison

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("table1-*.json", "compare-*.json", "l2-*.json", "targeted-*.json")


def column(mean: float, seconds: float, values: tuple[float, ...] = (), flags: tuple[str, ...] = ()) -> dict:
    several = values or (mean,)
    return {
        "n": 100,
        "norm": "linf",
        "eps": 0.3,
        "mean": mean,
        "mean_interval": [mean - 0.05, mean + 0.05],
        "robust_accuracies": list(several),
        "min": min(several),
        "max": max(several),
        "worst_case": min(several),
        "seconds": seconds,
        "flags": [{"name": name} for name in flags],
    }


def test_page_is_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "write_table1.py"))
    page = script["render"](ROOT / "docs" / "data")
    assert page == (ROOT / "docs" / "table1.md").read_text(encoding="utf-8"), "run scripts/write_table1.py"


def test_measurements_say_where_they_come_from():
    for pattern in NAMES:
        for path in (ROOT / "docs" / "data").glob(pattern):
            plain = json.loads(path.read_text(encoding="utf-8"))
            assert plain["command"].startswith("tmifpe "), path.name
            assert {"version", "versions", "machine"} <= set(plain), path.name
            assert "/home/" not in path.read_text(encoding="utf-8"), path.name


def test_comparison_as_markdown():
    columns = {
        "ce": column(0.5, 10, (0.49, 0.51)),
        "tmifpe": column(0.45, 20, (0.44, 0.46), ("incomplete-optimisation",)),
        "autoattack": column(0.4, 900),
    }
    pairs = [{"first": "ce", "second": "tmifpe", "adjusted": 0.01, "differs": True}]
    text = comparison.markdown(
        {"losses": columns, "seeds": [0, 1], "spread": 0.02, "clean_accuracy": 0.9, "pairs": pairs}
    )
    assert "| ce | 50.00 | 45.00 to 55.00 | 49.00 | 51.00 | 49.00 | 10 |" in text
    assert "| autoattack | 40.00 | 35.00 to 45.00 |  |  |  | 900 |" in text
    assert "AutoAttack took 45 times as long" in text
    assert "up to 2.00 points; 0 of the 3" in text
    assert "ce / tmifpe (p = 0.01)" in text
    assert "tmifpe: incomplete-optimisation" in text
    assert comparison.time_ratio({"ce": 1.0, "autoattack": 5.0}) == ""


def read(name: str) -> dict:
    return json.loads((ROOT / "docs" / "data" / f"{name}.json").read_text(encoding="utf-8"))


def test_what_is_said_of_the_paper_s_rows():
    for name in ("table1-mnist-fast", "table1-mnist-trades"):
        (row,) = [row for row in read(name)["rows"] if row["status"] == "measured"]
        assert row["n"] == 10_000
        assert row["clean"]["difference"] == 0
        columns = row["columns"]
        assert all(abs(columns[loss]["difference"]) < 0.0025 for loss in ("ce", "cw", "dlr", "mifpe", "tmifpe"))
        told = {frozenset((pair["first"], pair["second"])) for pair in row["pairs"] if pair["differs"]}
        assert not told & {frozenset(pair) for pair in (("ce", "mifpe"), ("ce", "tmifpe"), ("mifpe", "tmifpe"))}
        assert all(frozenset(("dlr", loss)) in told for loss in ("ce", "mifpe", "tmifpe"))


BESIDE = {
    "CIFAR-10 resnet4b, ℓ∞ 2/255": "compare-cifar10-resnet4b",
    "CIFAR-10 resnet2b, ℓ∞ 2/255": "compare-cifar10-resnet2b",
    "MNIST LeNet5, ℓ∞ 0.3": "compare-mnist-lenet5-autoattack",
    "MNIST Fast AT, ℓ∞ 0.3": "table1-mnist-fast-autoattack",
    "CIFAR-10 resnet4b, ℓ2 0.25": "l2-cifar10-resnet4b",
    "CIFAR-10 ResNet-18, ℓ∞ 1/255": "compare-cifar10-resnet18-autoattack",
    "MNIST TRADES, ℓ∞ 0.3": "table1-mnist-trades-autoattack",
    "MNIST TRADES, ℓ2 2.0": "l2-mnist-trades",
    "MNIST LeNet5, ℓ2 2.0": "l2-mnist-lenet5",
    "CIFAR-10 resnet2b, ℓ2 0.25": "l2-cifar10-resnet2b",
    "CIFAR-10 ResNet-18, ℓ2 0.25": "l2-cifar10-resnet18",
    "MNIST Fast AT, ℓ2 2.0": "l2-mnist-fast",
}


def beside(name: str) -> tuple[int, dict[str, tuple[float, float]]]:
    """Images, and per column percent and seconds, of a file of either kind."""
    plain = read(name)
    if "losses" in plain:
        columns = plain["losses"]
        return next(iter(columns.values()))["n"], {key: (100 * c["mean"], c["seconds"]) for key, c in columns.items()}
    (row,) = [row for row in plain["rows"] if row["status"] == "measured"]
    return row["n"], {key: (100 * c["measured"], c["seconds"][0]) for key, c in row["columns"].items()}


@pytest.mark.parametrize("title", list(BESIDE))
def test_what_is_said_beside_autoattack(title):
    n, columns = beside(BESIDE[title])
    shown = " | ".join(f"{columns[loss][0]:.2f}" for loss in ("ce", "tmifpe", "autoattack"))
    ratio = columns["autoattack"][1] / columns["tmifpe"][1]
    page = (ROOT / "docs" / "reading-table1.md").read_text("utf-8")
    assert f"| {title} | {n} | {shown} | {ratio:.0f} |" in page


def test_what_is_said_of_l2():
    for name, gap in (("l2-cifar10-resnet4b", 1.42), ("l2-cifar10-resnet2b", 1.65)):
        plain = read(name)
        columns, pairs = plain["losses"], {(p["first"], p["second"]): p for p in plain["pairs"]}
        assert round(100 * (columns["ce"]["mean"] - columns["tmifpe"]["mean"]), 2) == gap
        assert all(pairs["ce", loss]["differs"] for loss in ("mifpe", "tmifpe"))
        same = pairs["ce", "ce-margin"]
        assert same["only_first"] == same["only_second"] == 0
    for name in ("l2-mnist-fast", "l2-mnist-trades", "l2-mnist-lenet5"):
        columns = read(name)["losses"]
        blind = columns.pop("autoattack")
        assert 0.005 <= blind["mean"] <= 0.155
        for column in columns.values():
            assert 0.78 <= column["mean"] <= 0.91
            assert [flag["name"] for flag in column["flags"]] == ["found-from-outside"]
    assert not any(column["flags"] for column in read("l2-cifar10-resnet2b")["losses"].values())


def test_every_autoattack_column_is_in_the_reading():
    files = [path.stem for pattern in NAMES[:3] for path in (ROOT / "docs" / "data").glob(pattern)]
    assert sorted(name for name in files if "autoattack" in beside(name)[1]) == sorted(BESIDE.values())


def test_what_is_said_of_resnet18():
    rows, columns = read("nearer-cifar10-resnet18")["rows"], read("compare-cifar10-resnet18")["losses"]
    assert columns["ce"]["robust_accuracies"] == columns["ce-margin"]["robust_accuracies"]
    for seed, same in rows["ce-margin"].items():
        assert (same["only_reference"], same["only_this"]) == (0, 0)
        assert same["p"] > 0.05
        for warm in ("mifpe", "tmifpe"):
            assert rows[warm][seed]["p"] < 1e-8
            assert rows[warm][seed]["median_gain"] < -0.5
    sweep = [
        rows[name]["0"]["median_gain"] for name in ("mifpe(T=0.3)", "mifpe", "tmifpe", "mifpe(T=3)", "mifpe(T=10)")
    ]
    assert sweep == sorted(sweep)
    assert rows["mifpe(T=10)"]["0"]["p"] > 0.05


def test_what_is_said_of_targeted_attacks():
    rows = [row for path in (ROOT / "docs" / "data").glob("targeted-*.json") for row in read(path.stem)["rows"]]
    apart = {"cw": 0, "ce-margin": 0}
    for row in rows:
        assert row["targets"] != "least-likely" or not any(column["broken"] for column in row["losses"].values())
        for pair in row["pairs"]:
            for one, other in (("cw", "tmifpe"), ("ce-margin", "ce")):
                if {pair["first"], pair["second"]} == {one, other}:
                    apart[one] += pair["only_first"] + pair["only_second"]
    assert apart == {"cw": 1, "ce-margin": 0}
    assert f"{sum(row['attacked'] for row in rows):,} attacks" in (ROOT / "docs" / "reading-table1.md").read_text(
        "utf-8"
    )
