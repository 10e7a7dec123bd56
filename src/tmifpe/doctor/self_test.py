"""A run whose outcome is known: a bundled model, sixteen images, some seconds."""

from __future__ import annotations

__all__ = ["self_test"]

import tempfile
import time

from tmifpe.core.errors import first_line
from tmifpe.doctor.diagnosis import Diagnosis

MODEL, EPS = "digits-robust", 0.15
BROKEN = (2, 4, 11, 30, 33, 41, 50, 53)
ROBUST = (10, 20, 22, 37, 38, 39, 45, 48)
"""By `tmifpe curve`, the first break at 0.044 to 0.103 and the others withstand 0.25: both so far from eps that no
rounding of any processor, nor a weaker precision of a GPU, decides."""


def self_test() -> Diagnosis:
    """Attack the images on the device that a run would choose, store the run, and have it back from the store."""
    begun = time.perf_counter()
    try:
        problem = _attack()
    except (Exception, SystemExit) as error:  # whatever it is, it is what the doctor is for
        problem = f"{type(error).__name__}: {first_line(error)}"
    if problem:
        return Diagnosis("self-test", MODEL, "broken", problem)
    took = f"{time.perf_counter() - begun:.1f} s"
    return Diagnosis("self-test", MODEL, "ok", f"8 of 16 images break at linf {EPS:g}, the right ones ({took})")


def _attack() -> str:
    """What is wrong, "" if nothing."""
    from tmifpe.core.types import Threat
    from tmifpe.data import load_data
    from tmifpe.evaluation.evaluate import evaluate
    from tmifpe.models import load_model

    model, data = load_model(MODEL), load_data("digits", indices=sorted(BROKEN + ROBUST))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for resumed in (0, len(data)):
            result = evaluate(model, data, Threat("linf", EPS), "quick", store=folder, checks=False, device="auto")
            robust = tuple(row.index for row in result.outcomes if row.robust)
            if robust != ROBUST:
                return f"wrong verdicts: of the images {', '.join(map(str, ROBUST))} and 8 others robust are {robust}"
            if result.resumed != resumed:
                return f"the run store returned {result.resumed} of {len(data)} verdicts where {resumed} were due"
    return ""
