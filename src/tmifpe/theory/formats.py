"""Floating-point formats, from their bits alone: where exp underflows, and how coarse numbers near 1 are."""

from __future__ import annotations

__all__ = ["FORMATS", "Format", "format_of", "lam_of"]

import math
from dataclasses import dataclass

import torch

from tmifpe.core.errors import InputError, did_you_mean, shown

_LN2 = math.log(2.0)


@dataclass(frozen=True)
class Format:
    """A binary format with subnormals: `exponent_bits` wide exponent, `mantissa_bits` stored digits.

    >>> FORMATS["fp32"].smallest == 2.0**-149
    True
    >>> round(FORMATS["fp16"].lam, 4), round(FORMATS["fp16"].ce_dies, 2)
    (16.6355, 7.62)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    dtype: torch.dtype

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number: 1 minus the bias 2^(e-1) - 1."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def smallest(self) -> float:
        """The smallest subnormal, as a Python float (for fp64 it is 5e-324)."""
        return math.ldexp(1.0, self.emin - self.mantissa_bits)

    @property
    def lam(self) -> float:
        """The paper's lambda = -ln(smallest subnormal). There e^-lambda is that subnormal, not 0."""
        return (self.mantissa_bits - self.emin) * _LN2

    @property
    def underflow(self) -> float:
        """The first x at which e^-x rounds to 0 (round to nearest, ties to even): one ln 2 after `lam`."""
        return self.lam + _LN2

    @property
    def lam_flush(self) -> float:
        """Lambda where subnormals are flushed to zero: -ln(smallest normal)."""
        return -self.emin * _LN2

    @property
    def eps_max(self) -> float:
        """Machine epsilon, the spacing at 1: the paper's eps_max. Chopping errs by less than this."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def unit_roundoff(self) -> float:
        """Half of `eps_max`: the largest relative error of rounding to nearest."""
        return self.eps_max / 2

    @property
    def ce_dies(self) -> float:
        """The gap Delta from which 1 - p_1 of plain cross-entropy rounds to 0 (two classes): -ln(unit roundoff)."""
        return -math.log(self.unit_roundoff)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp16", 5, 10, torch.float16),
        Format("bf16", 8, 7, torch.bfloat16),
        Format("fp32", 8, 23, torch.float32),
        Format("fp64", 11, 52, torch.float64),
        Format("fp8-e4m3", 4, 3, torch.float8_e4m3fn),
        Format("fp8-e5m2", 5, 2, torch.float8_e5m2),
    )
}
_LAM = {f.dtype: f.lam for f in FORMATS.values()}


def format_of(name: str) -> Format:
    """The format of that name; an unknown name is an `InputError`."""
    if not isinstance(name, str) or name not in FORMATS:
        raise did_you_mean("precision", name, FORMATS)
    return FORMATS[name]


def lam_of(dtype: torch.dtype) -> float:
    """The paper's lambda for a torch dtype (text before eq:increase_t_star).

    >>> round(lam_of(torch.float32), 4)
    103.2789
    """
    if not isinstance(dtype, torch.dtype) or dtype not in _LAM:
        raise InputError(f"no lambda for {shown(dtype)}: it is not a binary floating-point format of at most 64 bits")
    return _LAM[dtype]
