"""action.yml: its steps run as GitHub would run them, fail the gate when they should, and write a summary that renders.

Also the hook for pre-commit and the workflows of this repository.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from tmifpe import cli

ROOT = Path(__file__).resolve().parent.parent
yaml = pytest.importorskip("yaml", reason="the extra hf brings it")
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
RUN_STEPS = [step for step in STEPS if "run" in step]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
PLAN = """\
store = "elsewhere"  # the action's own is taken
[defaults]
data = "digits"
eps = 0.1
limit = 6
attack = "quick"
checks = false
[[run]]
name = "one | <b>two</b> *three* $(touch injected)"
model = "digits-robust"
fail_below = {gate}
"""
NAME = "one | <b>two</b> *three* $(touch injected)"


@dataclass
class Job:
    """A job of GitHub Actions, as far as action.yml looks at one."""

    folder: Path
    inputs: dict[str, str]
    environment: dict[str, str]

    def __post_init__(self) -> None:
        self.outputs: dict[str, str] = {}
        self.files = {name: self.folder / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for path in self.files.values():
            path.write_text("")

    @property
    def summary(self) -> str:
        return self.files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")

    def value(self, text: str) -> str:
        def found(match: re.Match[str]) -> str:
            kind, *names = match[1].split(".")
            if kind == "inputs":
                return self.inputs.get(names[0], ACTION["inputs"][names[0]]["default"])
            assert [kind, *names[:2]] == ["steps", "run", "outputs"]
            return self.outputs[names[2]]

        return EXPRESSION.sub(found, text)

    def run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """A step, by the command that GitHub documents for `shell: bash`."""
        assert step["shell"] == "bash"
        script = self.folder / "step.sh"
        script.write_text(step["run"])
        variables = {name: self.value(text) for name, text in step.get("env", {}).items()}
        where = self.folder / "work" / self.value(step.get("working-directory", "."))
        paths = {name: str(path) for name, path in self.files.items()} | {"RUNNER_TEMP": str(self.folder)}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=where,
            env=self.environment | paths | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )
        lines = self.files["GITHUB_OUTPUT"].read_text().splitlines()
        self.outputs = dict(line.split("=", 1) for line in lines)
        return done


@pytest.fixture
def job(tmp_path: Path) -> Job:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "work").mkdir()
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "SYSTEMROOT") if name in os.environ}
    own = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONPATH": str(ROOT / "src"), "TMIFPE_TUNE": "off"}
    return Job(tmp_path, {}, kept | own)


def rendered(text: str) -> str:
    """As GitHub's Markdown, which has tables and lets no script through."""
    parser = pytest.importorskip("markdown_it", reason="the documentation's parser, by `make setup`").MarkdownIt
    return parser("commonmark", {"html": False}).enable("table").render(text)


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]


def test_inputs_reach_the_shell_by_the_environment_alone() -> None:
    """`${{ ... }}` in the text of a script is how names become commands."""
    assert len(RUN_STEPS) == 3
    for step in RUN_STEPS:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    told = {name for step in STEPS for name in re.findall(r"inputs\.([\w-]+)", str(step))}
    assert told == set(ACTION["inputs"])
    assert all({"description", "default"} == set(one) for one in ACTION["inputs"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gate", "code", "said"), [(0.0, 0, "passed"), (0.999, 1, "a gate was missed")], ids=["passed", "missed"]
)
def test_the_action_gates(job: Job, gate: float, code: int, said: str) -> None:
    (job.folder / "work" / "sub").mkdir()
    (job.folder / "work" / "sub" / "a plan.toml").write_text(PLAN.format(gate=gate))
    job.inputs |= {"plan": "a plan.toml", "working-directory": "sub", "only": "one*", "store": "my runs"}
    _, run, gates = RUN_STEPS
    done = job.run(run)
    assert done.returncode == 0, done.stderr
    assert job.outputs["exit-code"] == str(code)
    assert job.run(gates).returncode == code
    html = rendered(job.summary)
    assert f"<h2>Robustness: {said}</h2>" in html
    head, row = cells(html)
    assert head[0] == "run"
    assert len(row) == len(head)
    assert row[0] == NAME.replace("<", "&lt;").replace(">", "&gt;")
    assert ("below what is asked" in row[-1]) == bool(code)
    assert ("<pre><code>below what the plan asks for" in html) == bool(code)
    site = Path(job.outputs["report"]) / "site"
    assert (site / "index.html").is_file()
    assert len(list((site / "reports").iterdir())) == 1
    assert not list(job.folder.rglob("injected"))
    assert sorted(path.name for path in (job.folder / "work" / "sub").iterdir()) == ["a plan.toml", "my runs"]


@pytest.mark.slow
def test_a_mistake_fails_the_job_and_is_in_the_summary(job: Job) -> None:
    job.inputs |= {"plan": "--json; touch injected"}  # neither an option nor a command
    _, run, gates = RUN_STEPS
    assert job.run(run).returncode == 0
    assert job.run(gates).returncode == 2
    html = rendered(job.summary)
    assert "<h2>Robustness: a mistake in the plan</h2>" in html
    assert "<pre><code>error: " in html
    assert "injected" in html
    assert not list(job.folder.rglob("injected"))


@pytest.mark.slow
def test_the_action_installs_itself(job: Job) -> None:
    """From a clean copy of what git has, offline: what it depends on is there, and the index is not asked."""
    pytest.importorskip("hatchling", reason="the build backend, by `make setup`")
    clone, target = job.folder / "clone", job.folder / "installed"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_COMPILE": "1"}
    offline["PIP_NO_BUILD_ISOLATION"] = "0"  # pip reads this one the other way round
    del job.environment["PYTHONPATH"]
    job.environment |= offline | {"PIP_TARGET": str(target), "GITHUB_ACTION_PATH": str(clone)}
    done = job.run(RUN_STEPS[0])
    assert done.returncode == 0, done.stderr
    assert (target / "tmifpe" / "__init__.py").is_file()
    assert (target / "bin" / "tmifpe").is_file() or (target / "Scripts").is_dir()


def test_the_hook_of_pre_commit_is_a_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    name, verb, *words = [*shlex.split(hook["entry"]), *hook["args"]]
    assert f'{name} = "tmifpe.cli:main"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(cli.app)
    context = group.commands[verb].make_context(verb, words)
    assert context.params["plan"] == "plan.toml"
    assert context.params["quiet"]


def commands(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_parse_and_run_what_is_there(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] in ({"contents": "read"}, {})
    assert workflow[True], "YAML 1.1 reads the key `on` as true"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for text in commands(workflow) for name in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
    assert named <= targets
    assert named or path.name == "release.yml"
    for text in commands(workflow):
        assert not re.search(r"\$\{\{ *(?:github\.event|inputs)", text), "what a stranger writes is no shell text"


def test_the_matrix_is_every_python_on_every_system() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]
    matrix = matrix["strategy"]["matrix"]
    assert matrix["python-version"] == ["3.10", "3.11", "3.12", "3.13"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"Python :: {version}" in project for version in matrix["python-version"])


def test_a_release_is_published_without_a_password() -> None:
    """By trusted publishing: the job may ask for a token of its own, and no secret is read."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    publish = yaml.safe_load(text)["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert any("pypa/gh-action-pypi-publish" in step.get("uses", "") for step in publish["steps"])
    assert "secrets." not in text
    assert "password" not in text
