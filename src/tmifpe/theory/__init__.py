"""The paper's error analysis, corrected: the four scenarios, g(t), delta_sup(t) and the scale t* (docs/paper.md)."""

from __future__ import annotations

from tmifpe.theory.analyse import Analysis as Analysis
from tmifpe.theory.analyse import analyse as analyse
from tmifpe.theory.formats import FORMATS as FORMATS
from tmifpe.theory.formats import Format as Format
from tmifpe.theory.formats import lam_of as lam_of
from tmifpe.theory.scenario import Scenario as Scenario
from tmifpe.theory.solver import solve_t as solve_t

__all__ = ["FORMATS", "Analysis", "Format", "Scenario", "analyse", "lam_of", "solve_t"]
