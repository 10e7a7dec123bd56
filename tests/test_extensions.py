"""Losses, attacks, norms, models and data from outside the package, and the numbers that belong to their code."""

from __future__ import annotations

import importlib
import json
import linecache
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

import tmifpe
from tests.stores import environment
from tmifpe import PGD, InputError
from tmifpe.attacks import ATTACKS, Budget, Problem, Stepwise, attack_spelling, get_attack
from tmifpe.attacks.loop.rows import Rows
from tmifpe.cli import app
from tmifpe.core import rng
from tmifpe.core.code_stamp import code_stamp
from tmifpe.core.numerics import margin
from tmifpe.data import load_data
from tmifpe.losses import LOSSES, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss
from tmifpe.models import load_model
from tmifpe.norms import NORMS, Ball, column, get_norm
from tmifpe.norms.l2 import L2
from tmifpe.norms.linf import Linf
from tmifpe.testing import check_attack, check_loss, check_norm

pytestmark = pytest.mark.usefixtures("unchecked")

PLUGIN = Path(__file__).resolve().parent / "plugin"
THREAT = tmifpe.Threat("linf", 0.2)

LOSS = """
    import torch

    def margin(logits, labels, targets=None, *, sign=1.0):
        own = logits.gather(1, labels[:, None])[:, 0]
        return sign * (logits.scatter(1, labels[:, None], -1e9).amax(dim=1) - own)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of tests/plugin, as if pip had installed it."""
    points = re.findall(
        r'^\[project\.entry-points\."(.+)"\]\n(.+) = "(.+)"$', (PLUGIN / "pyproject.toml").read_text(), re.M
    )
    assert len(points) == 5
    info = tmp_path / "site" / "tmifpe_hinge-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tmifpe-hinge\nVersion: 0.1\n")
    lines = [f"[{group}]\n{name} = {value}\n" for group, name, value in points]
    lines.append("[tmifpe.norms]\nbroken-norm = tmifpe_hinge.absent:Norm\n")
    (info / "entry_points.txt").write_text(
        "".join(sorted(lines, reverse=True)).replace("[tmifpe.norms]\nbroken", "broken")
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield
    for name in [name for name in sys.modules if name.startswith("tmifpe_hinge")]:
        del sys.modules[name]


def digits(limit: int = 48) -> tuple[Any, Any]:
    return load_model("digits-robust"), load_data("digits", limit=limit)


def robust(loss: Any, **options: Any) -> float:
    model, data = digits()
    return tmifpe.evaluate(model, data, THREAT, tmifpe.PGD(loss=loss, steps=8), checks=False, **options).robust_accuracy


def downhill() -> float:
    """What is left of an attack that descends the margin."""
    return robust(lambda z, y: -without_targets(z, y))


def ran(*arguments: str) -> dict[str, Any]:
    run = CliRunner().invoke(app, [*arguments, "--json"])
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


def refused(*arguments: str) -> str:
    run = CliRunner().invoke(app, list(arguments))
    assert run.exit_code == 2, run.output
    assert "Traceback" not in run.output
    return " ".join(run.output.split())


# A package with entry points -------------------------------------------------------------------------------------


def test_a_package_in_python(plugin: None) -> None:
    model, data = load_model("digits-sharp:3"), load_data("digits-dim", limit=32)
    assert (model.name, data.name) == ("digits-sharp:3", "digits-dim")
    row = tmifpe.compare(model, data, THREAT, ["ce", "hinge(kappa=5)", "corner-pgd(loss=hinge)"], tmifpe.PGD(steps=5))
    assert list(row.results) == ["ce", "hinge(kappa=5)", "corner-pgd(loss=hinge)"]
    stored = row.results["hinge(kappa=5)"][0].spec.attacks[0]
    assert re.match(r"pgd\(loss=hinge@[0-9a-f]{12}\(kappa=5\),", stored)
    assert get_attack(stored) == tmifpe.PGD(loss="hinge(kappa=5)", steps=5)
    assert re.match(r"corner-pgd@[0-9a-f]{12}\(", row.results["corner-pgd(loss=hinge)"][0].spec.attacks[0])
    # Half of a ball of twice the size is the ball.
    half = tmifpe.evaluate(model, data, tmifpe.Threat("half-linf", 0.4), "cw", checks=False)
    assert half.robust_accuracy == tmifpe.evaluate(model, data, THREAT, "cw", checks=False).robust_accuracy
    assert re.match(r"half-linf@[0-9a-f]{12}$", half.spec.threat.norm)


def test_a_package_at_the_command_line(plugin: None, folder: Path) -> None:
    found = ran(
        *("compare", "digits-sharp", "--data", "digits-dim", "--limit", "16", "--steps", "3", "--eps", "0.2"),
        *("--losses", "ce,hinge(kappa=5),corner-pgd(loss=cw)"),
    )
    assert list(found["losses"]) == ["ce", "hinge(kappa=5)", "corner-pgd(loss=cw)"]
    for kind, name in (
        ("losses", "hinge"),
        ("attacks", "corner-pgd"),
        ("models", "digits-sharp"),
        ("data", "digits-dim"),
    ):
        listed = CliRunner().invoke(app, ["list", kind]).stdout
        assert re.search(rf"{name} +from tmifpe-hinge 0.1", listed)


def test_a_package_keeps_the_contracts(plugin: None) -> None:
    check_loss("hinge")
    check_attack("corner-pgd(steps=10)")
    check_norm("half-linf")


def test_a_broken_entry_harms_nobody_else(plugin: None) -> None:
    assert "broken-norm" in list(NORMS)
    assert NORMS.get("half-linf").name == "half-linf"
    with pytest.raises(InputError, match=r"norm 'broken-norm' of tmifpe-hinge 0\.1 does not import"):
        NORMS.get("broken-norm")


def test_two_packages_with_one_name(plugin: None, tmp_path: Path) -> None:
    info = tmp_path / "site" / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tmifpe.losses]\nhinge = other:Hinge\nce = other:CE\n")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match="several packages have a loss 'hinge'; write one of"):
        get_loss("hinge")
    assert type(get_loss("ce")).__module__ == "tmifpe.losses.ce"
    assert get_loss("tmifpe_hinge.loss:Hinge(kappa=3)").kappa == 3  # pyright: ignore[reportAttributeAccessIssue]


def test_the_docs_say_what_the_package_does() -> None:
    page = (PLUGIN.parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
    (entries,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert entries.strip() in (PLUGIN / "pyproject.toml").read_text(encoding="utf-8")
    names: dict[str, Any] = dict(zip(("model", "data"), digits(8), strict=True))
    cell(0, re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    assert robust(names["hinge"]) == robust("cw")


# Single files ----------------------------------------------------------------------------------------------------


def test_files_in_python_and_at_the_command_line(folder: Path) -> None:
    write(folder / "my_loss.py", LOSS)
    write(
        folder / "my_attack.py",
        """
        from dataclasses import dataclass
        import tmifpe

        @dataclass(frozen=True)
        class Mine(tmifpe.PGD):
            momentum: float = 0.5
            name = "mine"

        def strong(steps=4):
            return tmifpe.PGD(loss="cw", steps=steps)
        """,
    )
    write(
        folder / "my_data.py",
        """
        import tmifpe
        from torch.utils.data import DataLoader, TensorDataset

        def load():
            return DataLoader(TensorDataset(*tmifpe.load_data("digits").fetch(range(20))), batch_size=7)
        """,
    )
    columns = ["cw", "my_loss.py:margin", "my_attack.py:Mine(loss=./my_loss.py:margin)", "my_attack.py:strong"]
    found = ran(
        *("compare", "digits-robust", "--data", "my_data.py:load", "--steps", "4", "--eps", "0.2"),
        *("--losses", ",".join(columns)),
    )
    assert list(found["losses"]) == columns
    accuracy = {name: row["robust_accuracies"][0] for name, row in found["losses"].items()}
    assert accuracy["my_loss.py:margin"] == accuracy["cw"] == accuracy["my_attack.py:strong"]
    row = tmifpe.compare(
        load_model("digits-robust"), load_data("my_data.py:load"), THREAT, columns, tmifpe.PGD(steps=4)
    )
    assert {name: row.mean(name) for name in columns} == accuracy
    spelled = row.results[columns[2]][0].spec.attacks[0]
    assert re.match(r"my_attack.py:Mine@[0-9a-f]{12}\(loss=my_loss.py:margin@[0-9a-f]{12},momentum=0.5,", spelled)
    assert (
        row.results["my_attack.py:strong"][0].spec.attacks[0].startswith("pgd(loss=cw,")
    )  # it made that, nothing else
    assert load_data("my_data.py:load").name == "my_data.py:load"


def test_an_edited_file_is_another_run(folder: Path) -> None:
    """Before, the number of the first run came back from the store."""
    path = write(folder / "my_loss.py", LOSS)
    first = robust("my_loss.py:margin", store="runs")
    write(path, LOSS.replace("return sign", "return -sign"))
    assert robust("my_loss.py:margin", store="runs") == downhill() > first
    write(path, LOSS)
    assert robust("my_loss.py:margin", store="runs") == first
    arguments = [
        "evaluate",
        "digits-robust",
        "--limit",
        "48",
        "--eps",
        "0.2",
        "--attack",
        "paper",
        "--steps",
        "8",
        "--loss",
        "my_loss.py:margin",
    ]
    assert ran(*arguments)["robust_accuracy"] == first
    write(path, LOSS.replace("return sign", "return -sign"))
    assert ran(*arguments)["robust_accuracy"] == downhill()


def test_an_edited_helper_is_another_run(folder: Path) -> None:
    write(
        folder / "my_loss.py",
        "from my_helper import SIGN\nimport my_margin\n\ndef loss(z, y):\n    return SIGN * my_margin.margin(z, y)\n",
    )
    write(folder / "my_margin.py", LOSS)
    write(folder / "my_helper.py", "SIGN = 1.0\n")
    before = tmifpe.PGD(loss="my_loss.py:loss")
    first = robust("my_loss.py:loss", store="runs")
    write(folder / "my_helper.py", "SIGN = -1.00\n")
    assert tmifpe.PGD(loss="my_loss.py:loss") != before
    assert robust("my_loss.py:loss", store="runs") == downhill() > first


def test_a_run_ends_with_the_code_that_it_began_with(folder: Path) -> None:
    path = write(folder / "my_loss.py", LOSS)
    attack = tmifpe.PGD(loss="my_loss.py:margin(sign=2)", steps=8)
    write(path, "1 / 0")
    model, data = digits()
    assert tmifpe.evaluate(model, data, THREAT, attack, checks=False).robust_accuracy < 1
    with pytest.raises(InputError, match=r"my_loss.py does not import: ZeroDivisionError"):
        tmifpe.PGD(loss="my_loss.py:margin(sign=2)")


def test_a_spelling_of_other_code_is_refused(folder: Path) -> None:
    write(folder / "my_loss.py", LOSS)
    with pytest.raises(
        InputError, match=r"the code of loss 'my_loss\.py:margin' has changed since: it was @0123456789ab"
    ):
        get_loss("my_loss.py:margin@0123456789ab(sign=2)")
    text = spelling(get_loss("my_loss.py:margin(sign=2)"))
    script = f"from tmifpe.losses import get_loss, spelling; print(spelling(get_loss({text!r})))"
    other = subprocess.run(
        [sys.executable, "-c", script], env=environment(folder), capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == text


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("absent.py:f", "no such file: absent.py"),
        ("my_loss.py:absent", "there is no 'absent' in"),
        ("my_loss.py:detachd", "did you mean 'detached'?"),
        ("absent_module.x:f", "no module 'absent_module'"),
        ("my_loss.py:NUMBER", "neither a loss"),
        ("my_loss.py:Mutable", "must be a frozen dataclass"),
        ("my_loss.py:Plain", "must be a frozen dataclass"),
        ("my_loss.py:mean", "must return a tensor of shape (8,), got shape ()"),
        ("my_loss.py:matrix", "got shape (8, 10); return one value per example"),
        ("my_loss.py:number", "got a float"),
        ("my_loss.py:detached", "has no gradient"),
        ("my_loss.py:picky(lam=2)", "has no option 'lam'"),
        ("my_loss.py:Picky(kappa=-1)", "bad option for loss 'my_loss.py:Picky': kappa is negative"),
    ],
)
def test_what_cannot_work_is_one_sentence(folder: Path, column: str, sentence: str) -> None:
    write(
        folder / "my_loss.py",
        """
        from dataclasses import dataclass
        import torch.nn.functional as F

        NUMBER = 3

        def mean(z, y): return F.cross_entropy(z, y)
        def matrix(z, y): return z.log_softmax(1)
        def number(z, y): return 1.0
        def detached(z, y): return F.cross_entropy(z, y, reduction="none").detach()
        def picky(z, y, *, kappa=1.0): return F.cross_entropy(z, y, reduction="none")

        class Plain:
            def __call__(self, z, y, targets=None): return F.cross_entropy(z, y, reduction="none")

        @dataclass
        class Mutable(Plain):
            kappa: float = 1.0

        @dataclass(frozen=True)
        class Picky(Plain):
            kappa: float = 1.0
            def __post_init__(self):
                if self.kappa < 0:
                    raise ValueError("kappa is negative")
        """,
    )
    said = refused("compare", "digits-robust", "--limit", "8", "--steps", "2", "--no-store", "--losses", column)
    assert sentence in said


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("my_data.py:fails", "my_data.py:fails failed: OSError: no disk"),
        ("my_data.py:text", "data must be tensors"),
        ("my_data.py:needs", "must be a function that can be called without arguments"),
        ("mnst:DIR", "did you mean 'mnist'"),
        ("absent_module:f", "no module 'absent_module'"),
    ],
)
def test_data_that_cannot_work_is_one_sentence(folder: Path, data: str, sentence: str) -> None:
    write(
        folder / "my_data.py",
        """
        def fails(): raise OSError("no disk")
        def text(): return "images"
        def needs(where): return None
        """,
    )
    assert sentence in refused("evaluate", "digits-robust", "--data", data, "--no-store")


# Objects: functions, classes, instances; notebooks -----------------------------------------------------------------


def plain_margin(logits: Tensor, labels: Tensor, targets: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
    return scale * tmifpe.get_loss("cw")(logits, labels, targets)


def without_targets(logits: Tensor, labels: Tensor) -> Tensor:
    return tmifpe.get_loss("cw")(logits, labels)


def test_a_function_is_a_loss(tmp_path: Path) -> None:
    assert robust(plain_margin) == robust(without_targets) == robust("cw")
    attack = tmifpe.PGD(loss=plain_margin, steps=3)
    assert attack == tmifpe.PGD(loss=plain_margin, steps=3) == get_attack(attack_spelling(attack))
    assert isinstance(attack.loss, str)
    assert re.fullmatch(r"[\w.]*test_extensions:plain_margin@[0-9a-f]{12}", attack.loss)
    assert robust(plain_margin, store=tmp_path) == robust(plain_margin, store=tmp_path)
    assert robust(plain_margin, targets="second") == robust("cw", targets="second")
    with pytest.raises(InputError, match="without_targets takes no targets, so no attack on it can be targeted"):
        robust(without_targets, targets="second")


def test_functions_are_told_apart() -> None:
    def scaled(scale: Any) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda z, y: without_targets(z, y) * scale

    two = [lambda z, y: without_targets(z, y), lambda z, y: -without_targets(z, y)]
    same = [scaled(2.0), scaled(2.0), scaled(torch.tensor(2.0)), scaled(3.0), *two, plain_margin]
    names = [tmifpe.PGD(loss=one).loss for one in same]
    assert names[0] == names[1]
    assert len(set(names)) == len(names) - 1
    unknown = [tmifpe.PGD(loss=scaled(object())).loss for _ in range(2)]
    assert all("@unknown" in str(name) for name in unknown)
    assert unknown[0] != unknown[1]


def test_code_without_a_source_runs_but_is_not_stored(tmp_path: Path) -> None:
    loss = eval("lambda z, y: margin(z, y)", {"margin": without_targets})
    assert robust(loss) == robust("cw")
    with pytest.raises(InputError, match="cannot be told apart from those of other code and are not stored"):
        robust(loss, store=tmp_path)
    with pytest.raises(InputError, match="are not stored"):
        tmifpe.compare(*digits(), THREAT, ["ce", loss], tmifpe.PGD(steps=2), store=tmp_path)


def test_what_is_no_loss_gets_a_sentence() -> None:
    for bad in (torch.nn.CrossEntropyLoss(), 3, None, len, lambda: 1, lambda z: z):
        with pytest.raises(InputError) as caught:
            tmifpe.PGD(loss=bad)  # pyright: ignore[reportArgumentType]
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"got shape \(\); return one value per example, e.g. with reduction='none'"):
        robust(F.cross_entropy)


def cell(number: int, source: str, names: dict[str, Any]) -> None:
    """Run a cell of a notebook as IPython does: its source is in linecache, under a name of its own."""
    name, source = f"<cell {number} of {id(names)}>", textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)


HINGE = """
    import tmifpe
    from dataclasses import dataclass

    @tmifpe.register_loss("test-hinge")
    @dataclass(frozen=True)
    class Hinge(tmifpe.Loss):
        kappa: float = 1.0

        def __call__(self, logits, labels, targets=None):
            return sign * tmifpe.get_loss("cw")(logits, labels, targets).clamp(max=self.kappa)
"""


def test_a_notebook(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "sign": 1.0}
    cell(1, HINGE, names)
    first = robust("test-hinge", store=tmp_path)
    assert first == robust(names["Hinge"], store=tmp_path) == robust(names["Hinge"](), store=tmp_path) < 1
    old = spelling(get_loss("test-hinge"))
    assert spelling(get_loss(names["Hinge"](kappa=2.0))) == f"{old}(kappa=2)"
    cell(2, HINGE, names)  # the same again
    assert spelling(get_loss("test-hinge")) == old
    cell(3, HINGE.replace("return sign", "return -sign"), names)
    assert robust("test-hinge", store=tmp_path) == downhill()
    cell(4, HINGE, names)
    assert robust("test-hinge", store=tmp_path) == first
    names["sign"] = -1.0  # another cell changes what this one uses
    assert robust("test-hinge", store=tmp_path) == downhill()
    assert "test-hinge" in list(LOSSES)


def test_own_names_cannot_be_taken() -> None:
    with pytest.raises(InputError, match="'ce' is a loss of tmifpe itself"):
        tmifpe.register_loss("ce")
    for bad in ("a b", "a:b", "", "a@b", "1"):
        with pytest.raises(InputError, match="must be letters"):
            tmifpe.register_attack(bad)


def test_other_kinds_are_registered() -> None:
    @tmifpe.register_data("test-dim")
    def dim(share: str = "0.5") -> tuple[Tensor, Tensor]:
        images, labels = load_data("digits").fetch(range(8))
        return float(share) * images, labels

    @tmifpe.register_model("test-linear")
    def linear() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    @tmifpe.register_attack("test-strong")
    def strong(steps: int = 7) -> tmifpe.PGD:
        return tmifpe.PGD(loss="cw", steps=steps)

    assert float(load_data("test-dim:0.25").fetch([0])[0].max()) == 0.25
    assert load_model("test-linear").module(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert get_attack("test-strong(steps=9)") == tmifpe.PGD(loss="cw", steps=9)
    assert "test-strong" in ATTACKS


TWICE = {
    "loss": """
        @tmifpe.register_loss("test-twice")
        def again(logits, labels, targets=None):
            return {} * logits.sum(dim=1)
    """,
    "attack": """
        @tmifpe.register_attack("test-twice")
        def again():
            return tmifpe.PGD(steps={})
    """,
    "norm": """
        @tmifpe.register_norm("test-twice")
        class Again(Linf):
            def size(self, delta):
                return {} * super().size(delta)
    """,
    "data": """
        @tmifpe.register_data("test-twice")
        def again():
            return torch.full((2, 1, 2, 2), {} / 4), torch.zeros(2, dtype=torch.long)
    """,
    "model": """
        @tmifpe.register_model("test-twice")
        def again():
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, {} + 1))
    """,
}
WHICH: dict[str, Callable[[], object]] = {
    "loss": lambda: tmifpe.get_loss("test-twice")(torch.ones(1, 1), torch.zeros(1, dtype=torch.long)).item(),
    "attack": lambda: tmifpe.get_attack("test-twice").budget.backwards,
    "norm": lambda: get_norm("test-twice").size(torch.ones(1, 1, 1, 1)).item(),
    "data": lambda: 4 * load_data("test-twice").fetch([0])[0].max().item(),
    "model": lambda: (load_model("test-twice").module(torch.rand(1, 1, 2, 2))).shape[1] - 1,
}


@pytest.mark.parametrize("kind", TWICE)
def test_the_later_of_two_of_one_name_is_used(kind: str, tmp_path: Path) -> None:
    """In one file, where nothing but the line tells them apart."""
    code = textwrap.dedent(TWICE[kind]) + "seen.append(which())\n"
    script = tmp_path / f"{kind}.py"
    script.write_text("import torch, tmifpe\nfrom tmifpe.norms.linf import Linf\n" + code.format(1) + code.format(3))
    seen: list[object] = []
    runpy.run_path(str(script), {"seen": seen, "which": WHICH[kind]})
    assert seen == [1, 3]


def test_code_that_is_run_again_is_used_as_it_is_now(tmp_path: Path) -> None:
    """The same lines again, over something that has changed since: also by an attack that was made before."""
    script = tmp_path / "again.py"
    script.write_text(
        "def make(register):\n    return register('test-again')(lambda z, y, t=None: scale[0] * z.sum(1))\n"
    )
    attack = None
    for scale in (1.0, 3.0):
        names: dict[str, Any] = {"scale": [scale]}
        exec(compile(script.read_text(), str(script), "exec"), names)
        names["make"](tmifpe.register_loss)
        attack = attack or PGD("test-again")
        for name in ("test-again", attack.loss):
            assert spelled_loss(str(name))(torch.ones(1, 1), torch.zeros(1, dtype=torch.long)).item() == scale


def test_code_edited_after_its_import_has_no_known_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was imported is not what the file says now: its number must not be stored as one of the new code."""
    monkeypatch.syspath_prepend(str(folder))
    path = write(folder / "edited_loss.py", LOSS)
    module = __import__("edited_loss")
    path.write_text(path.read_text().replace("return sign", "return -sign"))
    assert code_stamp(module.margin) == "unknown"
    del sys.modules["edited_loss"]


# The contract tests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "saw"),
    [
        (lambda z, y: F.cross_entropy(z, y), "returns a single value for 12 examples; return one value per example"),
        (lambda z, y: F.log_softmax(z, 1), r"returns shape \(12, 10\) for 12 examples and 10 classes"),
        (lambda z, y: -F.cross_entropy(z, y, reduction="none"), r"ascending it lowers the margin .* on 32 of 32"),
        (lambda z, y: F.cross_entropy(z, y).expand(len(z)), "the value of example 0 has a gradient by example"),
        (lambda z, y: F.cross_entropy(z, y, reduction="none").exp(), "has a value of inf for logits of about 1000"),
        (lambda z, y: z[:, 0], "changes when the classes are renumbered"),
        (lambda z, y: 0 * F.cross_entropy(z, y, reduction="none"), "leaves the margin"),
        (lambda z, y, targets: F.cross_entropy(z, y, reduction="none"), "is the same for every target"),
        (lambda z, y: F.cross_entropy(z, y, reduction="none").detach(), "has no gradient"),
    ],
)
def test_check_loss_says_what_it_saw(loss: Any, saw: str) -> None:
    with pytest.raises(AssertionError, match=saw) as caught:
        check_loss(loss)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Unseeded(tmifpe.PGD):
    def start(self, problem: Problem, restart: int) -> Tensor:
        return problem.norm.project(problem.x + 0.01 * torch.rand_like(problem.x), problem.ball)


@dataclass(frozen=True)
class Escaping(tmifpe.PGD):
    def __call__(self, model: Any, x: Tensor, labels: Tensor, threat: tmifpe.Threat, **options: Any) -> Tensor:
        return x + 1.01 * (super().__call__(model, x, labels, threat, **options) - x)


@dataclass(frozen=True)
class Shifting(tmifpe.PGD):
    def __call__(self, model: Any, x: Tensor, labels: Tensor, threat: tmifpe.Threat, **options: Any) -> Tensor:
        return super().__call__(model, x, labels, threat, **options) + 0.01


@dataclass(frozen=True)
class Overwriting(tmifpe.PGD):
    def __call__(self, model: Any, x: Tensor, labels: Tensor, threat: tmifpe.Threat, **options: Any) -> Tensor:
        adv = super().__call__(model, x, labels, threat, **options)
        return x.copy_(adv)


@dataclass(frozen=True)
class Understating(tmifpe.PGD):
    @property
    def budget(self) -> Budget:
        return Budget(3, 3)


@dataclass(frozen=True)
class ByBatch(tmifpe.PGD):
    """Only the first example of a batch is attacked."""

    def start(self, problem: Problem, restart: int) -> Tensor:
        return problem.x.clone()

    def step(self, problem: Problem, state: Any, evaluated: Any) -> Any:
        moved = super().step(problem, state, evaluated)
        moved.x[1:] = problem.x[1:]
        return moved


@pytest.mark.parametrize(
    ("attack", "saw"),
    [
        (Unseeded(steps=3), "gives a different result with the same seed"),
        (Escaping(steps=10), "leaves the"),
        (Shifting(steps=3), "moves images by 0.01 at eps = 0"),
        (Overwriting(steps=10), "overwrites the images"),
        (Understating(steps=10), "queries the model 11 times per example, with a budget of 3 forwards"),
        (tmifpe.PGD(steps=1, step_size=0.01, random_start=False), "breaks 0 of 32 examples at 1.01 of the exact"),
        (ByBatch(steps=5), "breaks 1 of 32 examples at 1.01"),
    ],
)
def test_check_attack_says_what_it_saw(attack: Any, saw: str) -> None:
    with pytest.raises(AssertionError, match=saw):
        check_attack(attack)


@dataclass
class SearchState(Rows):
    x: Tensor
    best: Tensor
    value: Tensor
    looks: Tensor


@dataclass(frozen=True)
class RandomSearch(Stepwise):
    """A step in a random direction, kept if the margin rises."""

    steps: int = 60
    name: ClassVar[str] = "random-search"
    needs_gradient: ClassVar[bool] = False

    @property
    def looks(self) -> int:
        return self.steps + 1

    def init(self, problem: Problem) -> SearchState:
        x = problem.norm.start(problem.ball, problem.seed, problem.indices, problem.stage, 0)
        return SearchState(x, x.clone(), torch.full((len(x),), -torch.inf, dtype=x.dtype), problem.labels * 0)

    def objective(self, problem: Problem, state: SearchState) -> Any:
        return lambda logits: margin(logits, problem.labels, problem.targets)

    def step(self, problem: Problem, state: SearchState, evaluated: Any) -> SearchState:
        if evaluated.value is None:  # the last look only judges
            return replace(state, looks=state.looks + 1)
        better = evaluated.value > state.value
        best = torch.where(column(better, state.x), state.x, state.best)
        shape = tuple(best.shape[1:])
        draws = [
            rng.normal(problem.seed, problem.indices[i : i + 1], problem.stage, int(look) + 1, shape)
            for i, look in enumerate(state.looks)
        ]
        way = problem.norm.direction(torch.cat(draws).to(best.dtype))
        x = problem.norm.project(best + 0.5 * column(problem.ball.radius, best) * way, problem.ball)
        return SearchState(x, best, torch.where(better, evaluated.value, state.value), state.looks + 1)


def test_an_attack_without_gradients_keeps_a_looser_contract() -> None:
    check_attack(RandomSearch)
    with pytest.raises(AssertionError, match=r"at 3 of the exact distance, where 16 should be"):
        check_attack(RandomSearch(steps=1))


class Averaged(Linf):
    def size(self, delta: Tensor) -> Tensor:
        return super().size(delta).mean().expand(len(delta))


class Clipped(L2):
    """Scaled into the ball, then clipped to the box: feasible, but not nearest."""

    def project(self, adv: Tensor, ball: Ball) -> Tensor:
        way = adv - ball.x
        return ball.boxed(ball.x + column((ball.eps / self.size(way)).clamp(max=1.0), way) * way)


class Roomy(Linf):
    def region(self, ball: Ball) -> Tensor:
        return super().region(replace(ball, eps=1.5 * ball.eps))


class Blunt(L2):
    """The steepest direction of another norm, at unit length."""

    def direction(self, grad: Tensor) -> Tensor:
        return super().direction(torch.sign(grad))


class Unnormalised(L2):
    def direction(self, grad: Tensor) -> Tensor:
        return grad


class Crowded(Linf):
    def start(self, ball: Ball, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        return super().start(ball, seed, torch.arange(len(indices)), stage, restart)


class Modest(Linf):
    def gain(self, grad: Tensor, x: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
        return 0.9 * super().gain(grad, x, ball, region)


@pytest.mark.parametrize(
    ("norm", "saw"),
    [
        (Averaged, "measures an example differently among others"),
        (Clipped, "projects to a point that is not the nearest"),
        (Roomy, "projects outside the ball"),
        (Blunt, "has a direction that is not the steepest"),
        (Unnormalised, "has a steepest direction of size"),
        (Crowded, "starts elsewhere among other examples"),
        (Modest, "has a gain that a feasible point exceeds"),
    ],
)
def test_check_norm_says_what_it_saw(norm: Any, saw: str) -> None:
    with pytest.raises(AssertionError, match=saw):
        check_norm(norm)
