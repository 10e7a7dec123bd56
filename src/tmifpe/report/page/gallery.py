"""The gallery: which examples one would want to see, and their images as data URIs."""

from __future__ import annotations

__all__ = ["BUDGET", "MOST", "choose", "pictures", "share_of"]

import base64
import importlib.util
import io
import itertools
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.report.page.reported import Picture
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.result import Result

MOST = 500
_LARGEST = 112  # pixels of a side, beyond which images are made smaller
BUDGET = 9 << 20  # characters of all images, so that a report stays small


def choose(outcomes: Outcomes, most: int = MOST) -> dict[int, tuple[str, ...]]:
    """Rows of attacked examples, and why each was chosen, in the order in which one would want to see them.

    In turn one of: the fragile; those nearest to the boundary, on either side; the first of every class and stage; and
    those that are wrong by the largest margin.
    """
    attacked = outcomes.correct & outcomes.counted
    broken = np.flatnonzero(attacked & outcomes.fooled)
    near = np.flatnonzero(attacked & np.isfinite(outcomes.margin))
    near = near[np.argsort(np.abs(outcomes.margin[near]), kind="stable")]
    sure = broken[np.argsort(-outcomes.margin[broken], kind="stable")]
    fragile = np.flatnonzero(attacked & ((outcomes.marks & Mark.FRAGILE) != 0))
    lists = {
        "fragile": fragile,
        "nearest": near[: max(1, most // 3)],
        "spread": _spread(outcomes, np.flatnonzero(attacked)),
        "confident": sure[: max(1, most // 5)],
    }
    turns = itertools.zip_longest(*(found.tolist() for found in lists.values()))
    chosen = dict.fromkeys(row for turn in turns for row in turn if row is not None)
    marked = {why: set(found.tolist()) for why, found in lists.items() if why != "spread"}
    return {row: tuple(why for why in marked if row in marked[why]) for row in list(chosen)[:most]}


def _spread(outcomes: Outcomes, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The first of every class and stage, then the second of each, and so on; broken ones first."""
    place: dict[tuple[int, int], int] = {}
    turns = []
    for label, stage in zip(outcomes.label[rows].tolist(), outcomes.stage[rows].tolist(), strict=True):
        turns.append(place.get((label, stage), 0))
        place[label, stage] = turns[-1] + 1
    return rows[np.lexsort((~outcomes.fooled[rows], np.array(turns, dtype=int)))] if len(rows) else rows


def pictures(
    result: Result,
    rows: dict[int, tuple[str, ...]],
    clean: Tensor | None,
    adv: Tensor | None,
    shares: Sequence[tuple[str, str]] = (),
    budget: int = BUDGET,
) -> tuple[Picture, ...]:
    """The gallery from images in the order of `rows`; as many as fit into `budget` characters."""
    low, high = result.spec.threat.box
    outcomes, made, size = result.outcomes, [], 0
    for place, (row, also) in enumerate(rows.items()):
        images = ["", "", ""]
        if clean is not None:
            images[0] = _data_uri((clean[place] - low) / (high - low))
        if adv is not None:
            images[2] = _data_uri((adv[place] - low) / (high - low))
        if clean is not None and adv is not None:
            images[1] = _data_uri(_amplified(adv[place] - clean[place]), smooth=False)
        size += sum(map(len, images))
        if size > budget:
            break
        before, after = shares[place] if shares else map(_at_most, (outcomes.clean_gap[row], outcomes.adv_gap[row]))
        made.append(Picture(row, images[0], images[1], images[2], before, after, also))
    return tuple(made)


def share_of(probability: float) -> str:
    """A probability as a percentage, with the digits that matter near 100.

    >>> share_of(0.93), share_of(0.99996), share_of(1.0)
    ('93.0 %', '99.996 %', '100 %')
    """
    for digits in (1, 2, 3, 4):
        text = f"{100 * probability:.{digits}f} %"
        if not text.startswith("100") or probability == 1.0:
            return text.replace("100.0 %", "100 %")
    return "> 99.9999 %"


def _at_most(gap: float) -> str:
    """All that the gap between the two largest logits says of the larger probability: p ≤ 1/(1 + e^-gap)."""
    return f"≤ {share_of(float(1 / (1 + np.exp(-gap))))}" if np.isfinite(gap) else ""


def _amplified(change: Tensor) -> Tensor:
    """Around grey, so that the largest change of this image is black or white."""
    most = float(change.abs().max())
    return 0.5 + 0.5 * change / most if most > 0 else torch.full_like(change, 0.5)


def _data_uri(image: Tensor, smooth: bool = True) -> str:
    """An image (C, H, W) in [0, 1] as PNG, or where it is a large photograph as JPEG, if Pillow is there."""
    image = _as_picture(image.detach().float().cpu().clamp(0, 1))
    if image.shape[0] not in (1, 3):  # other channels have no colours
        image = image.mean(dim=0, keepdim=True)
    large = max(image.shape[1:]) > _LARGEST
    if large:
        share = _LARGEST / max(image.shape[1:])
        size = [max(1, round(side * share)) for side in image.shape[1:]]
        mode = "area" if smooth else "nearest"  # an average over signs would be grey
        image = torch.nn.functional.interpolate(image[None], size=size, mode=mode)[0]
    pixels = (255 * image).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    if large and importlib.util.find_spec("PIL") is not None:
        return _uri("jpeg", _jpeg(pixels))
    return _uri("png", _png(pixels))


def _as_picture(example: Tensor) -> Tensor:
    """(C, H, W) as it is. Of what is no image: a row of grey cells for a vector, the matrix for a spectrogram, and
    the mean over what comes before the last three dimensions."""
    if example.dim() == 1:
        height = max(1, len(example) // 6)  # a strip that can be seen
        return example.expand(1, height, len(example))
    if example.dim() == 2:
        return example[None]
    return example.flatten(0, -4).mean(dim=0) if example.dim() > 3 else example


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _png(pixels: NDArray[np.uint8]) -> bytes:
    """The simplest PNG there is: 8 bits, no filter."""
    height, width, channels = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
