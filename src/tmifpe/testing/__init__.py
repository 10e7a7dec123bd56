"""For test suites: is a model robust enough, and does a loss, attack or norm keep its contract?"""

from tmifpe.testing.assert_robust import assert_robust
from tmifpe.testing.check_attack import check_attack
from tmifpe.testing.check_loss import check_loss
from tmifpe.testing.check_norm import check_norm

__all__ = ["assert_robust", "check_attack", "check_loss", "check_norm"]
