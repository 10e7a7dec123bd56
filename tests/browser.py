"""A page in real Chromium: what it logged, what it tried to fetch, and what axe-core says of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
AXE = Path(os.environ.get("TMIFPE_AXE", ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"))
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
PATIENCE = 120_000
"""Milliseconds: on a busy machine a page may wait long for its turn."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright; skips with the reason where one of the two is missing."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no Chromium: `make browser` installs it (Debian, as root)")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])  # CI runs as root
        try:
            yield made
        finally:
            made.close()


class Opened:
    """A page, and everything it said or asked for that a report must not."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(viewport=WIDE, **context)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog"), dialog.dismiss()))
        self.page.on("request", self._asked)
        self.page.goto(path.resolve().as_uri())

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.problems.append(f"asked for {request.url}")

    def serious(self) -> list[str]:
        """The serious and critical problems that axe-core finds."""
        if not AXE.is_file():
            pytest.skip(f"axe-core is not in {AXE}: `make browser` installs it with npm")
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [
            f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def wait_for_none(self, selector: str) -> None:
        """Until nothing matches. Not `wait_for_function`, which evaluates text in the page and which the policy of our
        pages forbids unless the first look succeeds."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(0, timeout=PATIENCE)

    def fits(self) -> bool:
        """Whether the page is no wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@contextmanager
def opened(browser: Any, path: Path, **context: Any) -> Iterator[Opened]:
    """Within, the page is open; at the end it must have said and asked for nothing."""
    made = Opened(browser, path, **context)
    try:
        yield made
        assert not made.problems
    finally:
        made.context.close()
