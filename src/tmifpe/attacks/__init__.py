"""One step, one loop, sequences of attacks. A model is any callable to logits."""

from tmifpe.attacks.catalogue import ATTACKS, attack_spelling, get_attack, register_attack
from tmifpe.attacks.gama import GAMA
from tmifpe.attacks.loop import Attack, Loop, Verdicts, run
from tmifpe.attacks.pgd import PGD, bim, fgsm, mim
from tmifpe.attacks.queries import Evaluated, Queries, Tally
from tmifpe.attacks.rows import Problem

__all__ = [
    "ATTACKS",
    "GAMA",
    "PGD",
    "Attack",
    "Evaluated",
    "Loop",
    "Problem",
    "Queries",
    "Tally",
    "Verdicts",
    "attack_spelling",
    "bim",
    "fgsm",
    "get_attack",
    "mim",
    "register_attack",
    "run",
]
