"""The one loop, the rows that it moves, and the one place that asks the model."""

from tmifpe.attacks.loop.loop import Loop, State, Steps, blank, run_loop
from tmifpe.attacks.loop.rows import Problem, Rows, Verdicts

__all__ = ["Loop", "Problem", "Rows", "State", "Steps", "Verdicts", "blank", "run_loop"]
