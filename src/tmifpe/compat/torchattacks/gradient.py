"""The attacks of torchattacks that tmifpe has, with torchattacks' names, options and defaults."""

from __future__ import annotations

__all__ = ["APGD", "BIM", "EOTPGD", "FAB", "FFGSM", "FGSM", "MIFGSM", "PGD", "PGDL2", "TMIFPE", "Square"]

import torch
from torch import Tensor, nn

from tmifpe import attacks
from tmifpe.compat.torchattacks.attack import Attack
from tmifpe.core import rng
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number
from tmifpe.norms import column, get_norm

_RHO = 0.75


def steps_of(alpha: float, eps: float, steps: int, random_start: bool) -> attacks.PGD:
    """Plain PGD on cross-entropy with steps of `alpha`; ours are in units of eps, of which 0 moves nothing anyway."""
    size = real_number("alpha", alpha, above=0) / eps if eps > 0 else 1.0
    return attacks.PGD("ce", steps, schedule="constant", step_size=size, momentum=0.0, random_start=random_start)


class PGD(Attack):
    """Linf (Madry et al. 2018)."""

    norm = "linf"

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        random_start: bool = True,
    ) -> None:
        super().__init__(type(self).__name__, model)
        self.eps, self.alpha, self.steps, self.random_start = eps, alpha, steps, random_start
        self.supported_mode = ["default", "targeted"]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        plain = steps_of(self.alpha, self.eps, self.steps, self.random_start)
        return self.climb(plain, self.norm, self.eps, inputs, labels, self.drawn_seed())


class PGDL2(PGD):
    """The same at L2."""

    norm = "l2"

    def __init__(
        self, model: nn.Module, eps: float = 1.0, alpha: float = 0.2, steps: int = 10, random_start: bool = True
    ) -> None:
        super().__init__(model, eps, alpha, steps, random_start)

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Begins a uniform share of eps away in a random direction, where our own PGD, uniform in the ball, begins at
        its surface."""
        plain, seed = steps_of(self.alpha, self.eps, self.steps, False), self.drawn_seed()
        start = None
        if self.random_start:
            rows = torch.arange(len(inputs), device=inputs.device)
            way = get_norm("l2").direction(rng.normal(seed, rows, 0, 0, tuple(inputs.shape[1:])).to(inputs))
            share = rng.uniform(seed, rows, 0, 1, (1,))[:, 0].to(inputs)
            start = (inputs + column(self.eps * share, inputs) * way).clamp(0.0, 1.0)
        return self.climb(plain, self.norm, self.eps, inputs, labels, seed, start=start)


class EOTPGD(PGD):
    """Linf, with gradients averaged over `eot_iter` draws of a randomised model (Liu et al. 2019)."""

    def __init__(
        self,
        model: nn.Module,
        eps: float = 8 / 255,
        alpha: float = 2 / 255,
        steps: int = 10,
        eot_iter: int = 2,
        random_start: bool = True,
    ) -> None:
        super().__init__(model, eps, alpha, steps, random_start)
        self.eot_iter = eot_iter

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        plain = steps_of(self.alpha, self.eps, self.steps, self.random_start)
        return self.climb(plain, self.norm, self.eps, inputs, labels, self.drawn_seed(), self.eot_iter)


class BIM(PGD):
    """PGD from the image itself (Kurakin et al. 2017)."""

    def __init__(self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10) -> None:
        # Of 0 steps torchattacks takes as many as the paper advises.
        steps = steps or int(min(eps * 255 + 4, 1.25 * eps * 255))
        super().__init__(model, eps, alpha, steps, random_start=False)


class FGSM(PGD):
    """One step of eps from the image itself (Goodfellow et al. 2015)."""

    def __init__(self, model: nn.Module, eps: float = 8 / 255) -> None:
        super().__init__(model, eps, eps or 1.0, 1, random_start=False)


class FFGSM(PGD):
    """One step from a random start (Wong et al. 2020)."""

    def __init__(self, model: nn.Module, eps: float = 8 / 255, alpha: float = 10 / 255) -> None:
        super().__init__(model, eps, alpha, 1, random_start=True)


class MIFGSM(BIM):
    """BIM along an accumulated gradient (Dong et al. 2018)."""

    def __init__(
        self, model: nn.Module, eps: float = 8 / 255, alpha: float = 2 / 255, steps: int = 10, decay: float = 1.0
    ) -> None:
        super().__init__(model, eps, alpha, steps)
        self.decay = decay

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        size = self.alpha / self.eps if self.eps > 0 else 1.0
        climb = attacks.mim("ce", self.steps, step_size=size, momentum=self.decay)
        return self.climb(climb, self.norm, self.eps, inputs, labels, 0)


class APGD(Attack):
    """Auto-PGD (Croce and Hein 2020) on `ce`, `dlr`, or any loss of tmifpe."""

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        steps: int = 10,
        n_restarts: int = 1,
        seed: int = 0,
        loss: str = "ce",
        eot_iter: int = 1,
        rho: float = _RHO,
        verbose: bool = False,
    ) -> None:
        super().__init__("APGD", model)
        if rho != _RHO:
            raise InputError(f"tmifpe's Auto-PGD halves its steps by rho {_RHO} only, got {shown(rho)}")
        self.norm, self.eps, self.steps, self.n_restarts, self.seed = norm, eps, steps, n_restarts, seed
        self.loss, self.eot_iter, self.verbose = loss, eot_iter, verbose
        self.supported_mode = ["default", "targeted"]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        climb = attacks.APGD(self.loss, self.steps, self.n_restarts)
        return self.climb(climb, self.norm, self.eps, inputs, labels, self.seed, self.eot_iter)


class FAB(Attack):
    """The smallest perturbation (Croce and Hein 2020), where it is within eps. `multi_targeted`: FAB-T."""

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        steps: int = 10,
        n_restarts: int = 1,
        alpha_max: float = 0.1,
        eta: float = 1.05,
        beta: float = 0.9,
        verbose: bool = False,
        seed: int = 0,
        multi_targeted: bool = False,
        n_classes: int = 10,
    ) -> None:
        super().__init__("FAB", model)
        self.norm, self.eps, self.steps, self.n_restarts, self.seed = norm, eps, steps, n_restarts, seed
        self.alpha_max, self.eta, self.beta, self.verbose = alpha_max, eta, beta, verbose
        self.multi_targeted, self.n_classes = multi_targeted, n_classes
        self.supported_mode = ["default", "targeted"]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        search = attacks.FAB(
            self.steps,
            self.n_restarts,
            targets=max(1, self.n_classes - 1),
            towards="each" if self.multi_targeted else "nearest",
            beyond=self.eta,
            pull=self.alpha_max,
            back=self.beta,
        )
        return self.climb(search, self.norm, self.eps, inputs, labels, self.seed)


class TMIFPE(Attack):
    """The paper's protocol: PGD on T-MIFPE."""

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        steps: int = 100,
        n_restarts: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__("TMIFPE", model)
        self.norm, self.eps, self.steps, self.n_restarts, self.seed = norm, eps, steps, n_restarts, seed
        self.supported_mode = ["default", "targeted"]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        climb = attacks.paper(steps=self.steps, restarts=self.n_restarts)
        return self.climb(climb, self.norm, self.eps, inputs, labels, self.seed)


class Square(Attack):
    """Random search without gradients (Andriushchenko et al. 2020), on the margin."""

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        n_queries: int = 5000,
        n_restarts: int = 1,
        p_init: float = 0.8,
        loss: str = "margin",
        resc_schedule: bool = True,
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__("Square", model)
        if loss != "margin" or not resc_schedule:
            raise InputError("tmifpe's Square climbs the margin and fits its schedule to the queries; leave both as is")
        self.norm, self.eps, self.n_queries, self.n_restarts = norm, eps, n_queries, n_restarts
        self.p_init, self.seed, self.verbose = p_init, seed, verbose
        self.supported_mode = ["default", "targeted"]

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        search = attacks.Square(self.n_queries, self.p_init, self.n_restarts)
        return self.climb(search, self.norm, self.eps, inputs, labels, self.seed)
