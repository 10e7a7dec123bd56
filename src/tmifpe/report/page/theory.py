"""The theory page: the analysis of one row of logits, computed in the browser."""

from __future__ import annotations

__all__ = ["theory_html"]

import json
from dataclasses import asdict

from tmifpe.report.figure1 import PANELS
from tmifpe.report.page.render import standalone


def theory_html() -> str:
    """The page as the text of an HTML file.

    >>> "Figure 1, live" in theory_html()
    True
    """
    panels = [asdict(panel) for panel in PANELS]
    return standalone("theory", ("theory.js", "theory_view.js"), panels=panels, panels_json=json.dumps(panels))
