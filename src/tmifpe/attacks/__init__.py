"""One step, one loop, sequences of attacks. A model is any callable to logits."""

from tmifpe.attacks.apgd import APGD
from tmifpe.attacks.attack import Attack, Budget, Part
from tmifpe.attacks.catalogue import (
    ATTACKS,
    attack_spelling,
    get_attack,
    options_of,
    part_names,
    register_attack,
    split_sequence,
)
from tmifpe.attacks.gama import GAMA
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Evaluated, Queries, Tally
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.multi_targeted import MultiTargeted
from tmifpe.attacks.named import full, is_full, paper, quick
from tmifpe.attacks.pgd import PGD, bim, fgsm, mim
from tmifpe.attacks.radius.ddn import DDN
from tmifpe.attacks.radius.fab import FAB
from tmifpe.attacks.radius.fmn import FMN
from tmifpe.attacks.sequence import Sequence, as_attack
from tmifpe.attacks.square import Square
from tmifpe.attacks.stepwise import Stepwise
from tmifpe.attacks.training import attack

__all__ = [
    "APGD",
    "ATTACKS",
    "DDN",
    "FAB",
    "FMN",
    "GAMA",
    "PGD",
    "Attack",
    "Budget",
    "Evaluated",
    "Loop",
    "MultiTargeted",
    "Part",
    "Problem",
    "Queries",
    "Sequence",
    "Square",
    "Stepwise",
    "Tally",
    "Verdicts",
    "as_attack",
    "attack",
    "attack_spelling",
    "bim",
    "fgsm",
    "full",
    "get_attack",
    "is_full",
    "mim",
    "options_of",
    "paper",
    "part_names",
    "quick",
    "register_attack",
    "split_sequence",
]
