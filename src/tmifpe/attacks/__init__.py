"""One step, one loop, sequences of attacks. A model is any callable to logits."""

from tmifpe.attacks.attack import Attack, Budget, Part
from tmifpe.attacks.catalogue import ATTACKS, attack_spelling, get_attack, part_names, register_attack
from tmifpe.attacks.gama import GAMA
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.pgd import PGD, bim, fgsm, mim
from tmifpe.attacks.queries import Evaluated, Queries, Tally
from tmifpe.attacks.rows import Problem
from tmifpe.attacks.sequence import Sequence, as_attack
from tmifpe.attacks.stepwise import Stepwise

__all__ = [
    "ATTACKS",
    "GAMA",
    "PGD",
    "Attack",
    "Budget",
    "Evaluated",
    "Loop",
    "Part",
    "Problem",
    "Queries",
    "Sequence",
    "Stepwise",
    "Tally",
    "Verdicts",
    "as_attack",
    "attack_spelling",
    "bim",
    "fgsm",
    "get_attack",
    "mim",
    "part_names",
    "register_attack",
]
