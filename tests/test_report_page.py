"""The report without a browser: what it says, in every format, and that nothing in it can run or be fetched."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tmifpe
from tests.pages import DOT, HOSTILE, hostile, made_up, shown
from tests.stores import ask
from tmifpe import Result
from tmifpe.cli import app
from tmifpe.report.page import measured
from tmifpe.report.page.command import command
from tmifpe.report.page.gallery import choose, pictures, share_of
from tmifpe.report.page.render import report_html
from tmifpe.report.page.reported import Reported
from tmifpe.report.page.texts import FORMATS, as_text
from tmifpe.run.outcomes import Mark
from tmifpe.run.shown.titles import model_titles

OLD = Path(__file__).parent / "old_stores" / "0.1.0"
NEVER_FETCHED = re.compile(r"(?:src|href|action|poster|data|xlink:href)\s*=\s*[\"'](?!data:|#)|url\(|@import|https?://")


class _Tags(HTMLParser):
    """Every tag with its attributes, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def call(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored run of a bundled model, with a second opinion."""
    folder = tmp_path_factory.mktemp("runs")
    ask(folder, verify="fp64")
    return folder


@pytest.fixture(scope="module")
def result() -> Result:
    return made_up()


def test_page_says_the_numbers(result: Result) -> None:
    page = report_html([shown(result)])
    text = " ".join(_Tags(page).text)
    for wanted in (
        f"{100 * result.robust_accuracy:.2f} %",
        f"{100 * result.clean_accuracy:.2f} %",
        "gradient-dies",
        "--straight-through",
        "What each stage broke and cost",
        "pgd tmifpe 100",
        "multi-targeted dlr 20, near",
        "Where the gradient dies",
        "tmifpe evaluate",
    ):
        assert wanted in text, wanted


def test_every_chart_is_svg_that_reads(result: Result) -> None:
    """Steps, eps, classes, confusion, margins, gaps: well-formed, with a name, and every number finite."""
    drawn = re.findall(r"<svg.*?</svg>", report_html([shown(result)]), re.DOTALL)
    assert len(drawn) == 6
    for one in drawn:
        root = ET.fromstring(one)
        assert root.attrib["aria-label"]
        assert len(list(root)) > 10
        assert not re.search(r"\b(?:nan|inf)\b", one)


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (3, 3), (50, 2), (300, 150)])
def test_small_and_wide_results_are_drawn(n: int, classes: int) -> None:
    page = report_html([shown(made_up(n, classes))])
    assert "</html>" in page


def test_nothing_is_fetched_and_only_our_script_runs(result: Result) -> None:
    for reports in ([shown(result)], [hostile()], [shown(result), hostile()]):
        page = report_html(reports)
        tags = _Tags(page).tags
        assert [tag for tag, _ in tags].count("script") == 1
        assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"]
        outside = [value for _, found in tags for key, value in found.items() if key in ("src", "href", "action")]
        assert all((value or "").startswith(("data:", "#")) for value in outside)
        (policy,) = [found["content"] for tag, found in tags if "http-equiv" in found]
        assert policy
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy


def test_hostile_names_are_text() -> None:
    page = report_html([hostile()])
    assert "<script>document" not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page  # it would turn the text around it
    assert "<script>document.title='owned'</script>" in "".join(_Tags(page).text)


@pytest.mark.parametrize("kind", FORMATS)
def test_hostile_names_are_text_in_every_format(kind: str) -> None:
    text = as_text([hostile(), shown(made_up(30))], kind)
    if kind == "md":
        assert not re.search(r"(?<!\\)<", text)
    elif kind == "csv":
        assert not [cell for row in csv.reader(io.StringIO(text)) for cell in row if cell[:1] in ("=", "@", "+")]
    elif kind == "latex":
        assert text.count(r"\begin{") == text.count(r"\end{")


def test_formats_agree(result: Result) -> None:
    reports = [shown(result), shown(made_up(seed=1))]
    number = f"{100 * result.robust_accuracy:.2f}"
    plain = json.loads(as_text(reports, "json"))
    assert plain["runs"][0]["result"]["robust_accuracy"] == result.robust_accuracy
    assert plain["compared"][0]["title"] == "Comparison"
    rows = list(csv.DictReader(io.StringIO(as_text(reports, "csv"))))
    assert {"Headline", "Stages", "Provenance"} <= {row["table"] for row in rows}
    for kind in ("md", "latex"):
        assert number in as_text(reports, kind)


def test_comparison_has_the_layout_of_table_1() -> None:
    """A row per model and threat, a column per attack."""
    from tmifpe.report.page.facts import comparison_sheet

    one = made_up()
    other = replace(one, spec=replace(one.spec, attacks=one.spec.attacks[:1]))
    elsewhere = replace(one, spec=replace(one.spec, model="another"))
    sheet = comparison_sheet([Reported(each) for each in (one, other, elsewhere)])
    assert sheet.head[5:] == ("pgd tmifpe 100; multi-targeted dlr 20, near", "pgd tmifpe 100")
    assert [row[0] for row in sheet.rows] == ["a model", "another"]
    assert sheet.rows[0][6].startswith(f"{100 * other.robust_accuracy:.2f} (")
    assert sheet.rows[1][6] == ""


def test_differences_are_tested_under_one_threat() -> None:
    from tmifpe.report.page.facts import differences

    one = made_up()
    other = replace(one, spec=replace(one.spec, attacks=one.spec.attacks[:1]))
    farther = replace(one, spec=replace(one.spec, threat=replace(one.spec.threat, eps=0.9)))
    assert len(differences([Reported(each) for each in (one, other, farther)]).rows) == 1


def test_curves_end_at_the_robust_accuracy(result: Result) -> None:
    line = measured.against_steps(result)
    assert line is not None
    assert line.y[0] == pytest.approx(result.clean_accuracy)
    assert line.y[-1] == pytest.approx(result.robust_accuracy)
    assert all(a >= b for a, b in zip(line.y, line.y[1:], strict=False))
    (sizes,) = measured.against_eps(result)
    assert sizes.y[-1] == pytest.approx(result.robust_accuracy)
    half = int(((result.outcomes.size <= sizes.x[100]) & result.outcomes.fooled).sum())
    assert sizes.y[100] == pytest.approx(result.clean_accuracy - half / result.n)


def test_curve_of_a_run_at_every_radius(result: Result) -> None:
    """What was found lies above what was proved, and both agree with the result at its own radii."""
    spec = replace(result.spec, radii=(0.02, 0.05, 0.1), certify="crown")
    table = result.outcomes.take(np.arange(len(result.outcomes)))
    table.broken_at[:] = np.where(table.fooled, table.size, np.where(table.correct, np.inf, 0.0))
    table.certified_to[:] = np.where(table.correct, np.where(table.fooled, table.size / 2, 0.1), 0.0)
    made = replace(result, spec=spec, outcomes=table)
    found, proved = measured.against_eps(made)
    assert (found.name, proved.name) == ("attacked", "certified")

    def at(line: measured.Line, eps: float) -> float:
        return line.y[int(np.searchsorted(line.x, eps, side="right")) - 1]

    for one in made.radii:
        assert at(found, one.eps) == pytest.approx(one.robust_accuracy, abs=0.01)  # thinned to 200 points
        assert one.certified_accuracy is not None
        assert at(proved, one.eps) == pytest.approx(one.certified_accuracy, abs=0.01)
        assert at(proved, one.eps) <= at(found, one.eps)
    assert "robust at eps 0.02" in as_text([Reported(made)], "md")


def test_strongest_mode_has_no_curve_of_steps(result: Result) -> None:
    assert measured.against_steps(replace(result, spec=replace(result.spec, mode="strongest"))) is None


def test_histograms_count_every_attacked_example(result: Result) -> None:
    attacked = int((result.outcomes.correct & result.outcomes.counted).sum())
    for found in (measured.margins(result), measured.gaps(result)):
        assert found is not None
        assert sum(found.before) == sum(found.after) == attacked


def test_confusion_counts_and_cuts(result: Result) -> None:
    found = measured.confusion(result)
    assert found is not None
    assert found.whole
    off = sum(n for i, row in enumerate(found.counts) for j, n in enumerate(row) if i != j)
    assert off == result.broken
    wide = measured.confusion(made_up(2000, 100))
    assert wide is not None
    assert not wide.whole
    assert len(wide.labels) == 20


def test_gallery_takes_what_one_wants_to_see(result: Result) -> None:
    table = result.outcomes
    rows = choose(table, 100)
    assert len(rows) == 100
    assert all(table.correct[row] for row in rows)
    fragile = set(np.flatnonzero((table.marks & Mark.FRAGILE) != 0).tolist())
    assert fragile <= set(rows)
    attacked = np.flatnonzero(table.correct)
    nearest = attacked[np.argsort(np.abs(table.margin[attacked]))[:10]]
    assert set(nearest.tolist()) <= set(rows)
    assert {int(table.label[row]) for row in rows} == set(range(10))
    assert {int(table.stage[row]) for row in rows} == {-1, 0, 1}
    assert len(choose(table, 10_000)) == len(attacked)


def test_images_are_pngs_of_the_pixels(result: Result) -> None:
    pil = pytest.importorskip("PIL.Image")
    import base64

    clean = torch.rand(1, 3, 5, 4)
    adv = (clean + 0.1).clamp(max=1)
    (made,) = pictures(result, {0: ()}, clean, adv)
    for uri, image in ((made.clean, clean), (made.adv, adv)):
        seen = np.array(pil.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
        assert np.array_equal(seen, (255 * image[0]).round().byte().permute(1, 2, 0).numpy())
    assert made.change.startswith("data:image/png")


def test_large_images_are_made_smaller_and_bounded(result: Result) -> None:
    clean = torch.rand(60, 3, 224, 224)
    made = pictures(result, dict.fromkeys(range(60), ()), clean, clean + 0.01)
    assert sum(len(one.clean + one.change + one.adv) for one in made) < 9 << 20
    assert made


def test_a_probability_keeps_its_nines() -> None:
    assert [share_of(p) for p in (0.5, 0.9996, 1 - 1e-12)] == ["50.0 %", "99.96 %", "> 99.9999 %"]


def test_a_hundred_thousand_outcomes_stay_small() -> None:
    page = report_html([shown(made_up(100_000, 1000), 500)])
    assert len(page.encode()) < 2_000_000  # and images are bounded by nine megabytes


def test_report_of_a_stored_run(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert "wrote" in call("report", "latest", "--store", store, "--out", out)
    page = out.read_text(encoding="utf-8")
    kept = tmifpe.Store(store)
    (run,) = kept.runs()
    result = kept.result(run)
    assert f"{100 * result.robust_accuracy:.2f} %" in page
    assert page.count("data:image/png") == 3 * int(result.outcomes.correct.sum())
    assert "Probabilities by digits-robust." in page
    assert "Clean images from digits." in page
    words = command(result).split()
    assert words[:5] == ["tmifpe", "evaluate", "digits-robust", "--data", "digits"]
    assert "--limit" in words
    assert "--verify" in words


def test_the_command_of_a_report_asks_for_the_same_run(store: Path) -> None:
    """The key is a hash of everything that can change the answer."""
    (run,) = tmifpe.Store(store).runs()
    words = shlex.split(command(tmifpe.Store(store).result(run)))[1:]
    again = json.loads(call(*words, "--store", store, "--no-checks", "--json"))
    assert again["key"] == run.key
    assert again["resumed"] == run.plan.n


def test_the_command_of_a_report_names_weights_and_normalisation(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "my_model.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    save_file({"1.weight": torch.eye(10, 64), "1.bias": torch.zeros(10)}, tmp_path / "my weights.safetensors")
    asked = ["evaluate", f"{tmp_path}/my_model.py:build", "--weights", f"{tmp_path}/my weights.safetensors"]
    asked += ["--mean", "-0.5", "--std", "2", "--data", "digits", "--limit", "8", "--attack", "pgd(steps=1)"]
    call(*asked, "--store", tmp_path / "runs", "--no-checks")
    kept = tmifpe.Store(tmp_path / "runs")
    (run,) = kept.runs()
    told = command(kept.result(run))
    again = json.loads(call(*shlex.split(told)[1:], "--store", tmp_path / "runs", "--no-checks", "--json"))
    assert (again["key"], again["resumed"]) == (run.key, 8)
    page = call("report", "latest", "--store", tmp_path / "runs", "--format", "md")
    assert f"| command | `{told}` |" in page  # to be copied as it is, my_model.py among it
    assert replace(run.spec, model_options=()).key() == run.key  # a path is recorded and not hashed


def test_two_weights_of_one_model_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    monkeypatch.setenv("COLUMNS", "1000")  # the folder of a test may have a long name
    (tmp_path / "net.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    asked = ["evaluate", f"{tmp_path}/net.py:build", "--data", "digits", "--limit", "8", "--attack", "pgd(steps=1)"]
    kept = ["--store", tmp_path / "runs"]
    for k, name in enumerate(("a/best", "b/best", "b/last")):
        file = tmp_path / f"{name}.safetensors"
        file.parent.mkdir(exist_ok=True)
        save_file({"1.weight": torch.eye(10, 64) * (k + 1), "1.bias": torch.zeros(10)}, file)
        call(*asked, *kept, "--no-checks", "--weights", file)
        alone = call("runs", "list", *kept)
        assert ("best" in alone) == (k > 0), "one model of that name needs no more"
    listed = call("runs", "list", *kept)
    page = call("report", *(run.key for run in tmifpe.Store(tmp_path / "runs").runs()), *kept, "--format", "md")
    call("board", tmp_path / "runs", "--out", tmp_path / "site", "--gallery", 0)
    board = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for name in ("a/best", "b/best", "b/last"):
        title = f"net.py:build ({name}.safetensors)"
        assert title in " ".join(listed.split())
        assert page.replace("\\", "").count(title) >= 2  # in the comparison, and above its own tables
        assert f"{title}</bdi></th>" in board


def test_models_without_a_file_are_told_apart_by_what_they_are() -> None:
    spec = made_up(10).spec
    same = [replace(spec, model="net", model_identity=identity) for identity in ("aaaaaaaa", "bbbbbbbb", "aaaaaaaa")]
    assert model_titles(same) == ["net #aaaaaa", "net #bbbbbb", "net #aaaaaa"]
    assert model_titles([same[0], replace(same[1], model="other"), same[2]]) == ["net", "other", "net"]


def test_given_examples_are_reported(tmp_path: Path) -> None:
    adv = ask(attack=tmifpe.PGD(steps=10), keep_adv=True).adv
    found = ask(tmp_path, attack=tmifpe.PGD(steps=1), transfer_adv=adv)
    (run,) = tmifpe.Store(tmp_path).runs()
    again, given = tmifpe.Store(tmp_path).result(run).transferred, found.transferred
    assert given is not None
    assert again is not None
    assert again.to_json() == given.to_json()
    both, alone = (f"{100 * share:.2f}" for share in (given.united_robust_accuracy, given.robust_accuracy))
    page = call("report", "latest", "--store", tmp_path, "--format", "md")
    assert f"| with the given examples | {both} % robust ({alone} % after those examples alone) |" in page


def test_formats_of_a_stored_run(store: Path, tmp_path: Path) -> None:
    (run,) = tmifpe.Store(store).runs()
    told = json.loads(call("report", run.key[:6], "--store", store, "--format", "json"))
    assert told["runs"][0]["run"] == run.key
    call("report", "latest", "--store", store, "--format", "md", "--out", tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith("# Robustness report")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["latest", "--format", "pdf"], "unknown format"),
        (["zzzz"], "is not the name of a run"),
        (["latest", "--out", "/nowhere/at/all.html"], "cannot write"),
        (["latest", "--format", "md", "--open"], "--out FILE"),
    ],
)
def test_mistakes_are_said_in_a_sentence(words: list[str], said: str, store: Path) -> None:
    assert said in call("report", *words, "--store", store, code=2)


def test_an_empty_store_has_no_latest_run(tmp_path: Path) -> None:
    assert "there is no run" in call("report", "latest", "--store", tmp_path / "none", code=2)


def test_runs_of_0_1_0_show_what_they_have(tmp_path: Path) -> None:
    """No gaps, no clean margins, no stages: the rest is there, the unfinished run with its bounds."""
    shutil.copytree(OLD, tmp_path / "old")
    runs = [run for run in tmifpe.Store(tmp_path / "old").runs() if run.done]
    assert len(runs) >= 8
    call("report", *(run.name for run in runs), "--store", tmp_path / "old", "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count('<details class="run"') == len(runs)
    assert "incomplete: 8 examples have no verdict" in page
    assert DOT.partition(",")[0] in page


def test_a_store_names_no_code_to_run(store: Path, tmp_path: Path) -> None:
    """Data and model of a hostile store are names of Python files: they are shown, and never loaded."""
    import sqlite3

    shutil.copytree(store, tmp_path / "bad")
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\ndef load(): ...\n")
    with sqlite3.connect(tmp_path / "bad" / "runs.sqlite") as connection:
        (spec,) = connection.execute("SELECT spec FROM runs").fetchone()
        plain = json.loads(spec) | {"data": f"{trap}:load", "model": f"{trap}:load{HOSTILE}"}
        connection.execute("UPDATE runs SET spec = ?", (json.dumps(plain),))
    connection.close()
    call("report", "latest", "--store", tmp_path / "bad", "--out", tmp_path / "r.html")
    assert not (tmp_path / "sprung").exists()
    assert "name their source with --data" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_other_images_are_not_shown(store: Path, tmp_path: Path) -> None:
    images, labels = tmifpe.load_data("digits").fetch(range(48))
    np.savez(tmp_path / "other.npz", images=(images * 0.5).numpy(), labels=labels.numpy())
    call("report", "latest", "--store", store, "--out", tmp_path / "r.html", "--data", f"npz:{tmp_path / 'other.npz'}")
    assert "holds other images than the run had" in (tmp_path / "r.html").read_text(encoding="utf-8")
