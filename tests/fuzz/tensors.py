"""Tensors of every kind that a caller could hand over, right and wrong."""

from __future__ import annotations

__all__ = ["DTYPES", "FILLS", "LAYOUTS", "Made", "laid_out", "tensors"]

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATING, torch.uint8, torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
FILLS = {
    "uniform": lambda r: r,
    "zeros": lambda r: r * 0,
    "ones": lambda r: r * 0 + 1,
    "bytes": lambda r: (r * 255).round(),
    "signed": lambda r: r * 2 - 1,
    "large": lambda r: r * 1e4,
    "huge": lambda r: (r - 0.5) * 1e38,
    "largest": lambda r: torch.where(r > 0.5, 1.0, -1.0).double() * 1.7e308,
    "subnormal": lambda r: r * 1e-310,
    "tiny": lambda r: r * 1e-40,
    "ties": lambda r: (r * 2).round(),
    "nan": lambda r: r * torch.nan,
    "some nan": lambda r: torch.where(r > 0.8, torch.nan, r),
    "inf": lambda r: torch.where(r > 0.5, torch.inf, r),
    "minus inf": lambda r: torch.where(r > 0.5, -torch.inf, r),
    "all minus inf": lambda r: r * 0 - torch.inf,
}
LAYOUTS = ("plain", "plain", "plain", "transposed", "strided", "expanded", "channels last", "grad", "meta", "sparse")


@dataclass(frozen=True)
class Made:
    """A tensor and what it was asked to be, for the message of a failing test."""

    tensor: Any
    asked: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"tensor({', '.join(map(str, self.asked))})"


def filled(shape: tuple[int, ...], dtype: torch.dtype, fill: str, seed: int) -> Tensor:
    random = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = FILLS[fill](random)
    if not (dtype.is_floating_point or dtype.is_complex):
        values = values.nan_to_num(0.0, 127.0, 0.0).clamp(-127, 255)
    return values.to(dtype)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values, held otherwise; a layout that does not apply leaves them alone."""
    if layout == "transposed" and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.dim() >= 1 and x.dtype != torch.float8_e4m3fn:
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "expanded" and x.dim() >= 1 and len(x):
        return x[:1].expand(x.shape)
    if layout == "channels last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "grad" and x.dtype in FLOATING:
        return x.requires_grad_()
    if layout == "meta":
        return x.to("meta")
    if layout == "sparse" and x.dim() >= 1 and x.dtype in (torch.float32, torch.float64):
        return x.to_sparse()
    return x


@st.composite
def tensors(draw: st.DrawFn, shapes: st.SearchStrategy[tuple[int, ...]], good: float = 0.5) -> Made:
    """Of such a shape; with probability about `good` nothing but the values is odd."""
    plain = draw(st.floats(0, 1)) <= good
    dtype = draw(st.sampled_from(FLOATING if plain else DTYPES))
    fill, layout = draw(st.sampled_from(list(FILLS))), "plain" if plain else draw(st.sampled_from(LAYOUTS))
    shape, seed = draw(shapes), draw(st.integers(0, 9))
    return Made(laid_out(filled(shape, dtype, fill, seed), layout), (shape, dtype, fill, layout, seed))
