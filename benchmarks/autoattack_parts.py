"""Which part of AutoAttack breaks what T-MIFPE leaves standing, and in how few pixels: Fast AT at L2 2.0.

TMIFPE_SHARED=../shared python benchmarks/autoattack_parts.py [IMAGES] > benchmarks/results/autoattack_parts.json
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from pyautoattack import AutoAttack

import tmifpe

PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
EPS = 2.0
FEW = 20  # pixels


def main() -> None:
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    shared = Path(os.environ["TMIFPE_SHARED"])
    model = tmifpe.load_model("mnist-fast", weights=shared / "models" / "mnist_fast_at.pth").module
    data = tmifpe.load_data(f"mnist:{shared / 'data' / 'mnist'}", limit=images)
    robust = tmifpe.evaluate(model, data, tmifpe.Threat("l2", EPS)).outcomes.robust
    x, y = data.fetch(np.flatnonzero(robust).tolist())
    found = {}
    for part in PARTS:
        attack = AutoAttack(model, norm="L2", eps=EPS, version="custom", attacks=[part], seed=0)
        with contextlib.redirect_stdout(sys.stderr):
            adv, _ = attack.run_standard_evaluation(x, y, batch_size=64)
        with torch.no_grad():
            broken = model(adv).argmax(dim=1) != y
        squares = (adv - x)[broken].flatten(1).square().sort(dim=1, descending=True).values
        share = float((squares[:, :FEW].sum(dim=1) / squares.sum(dim=1)).median()) if bool(broken.any()) else None
        found[part] = {"broken": int(broken.sum()), f"share_of_{FEW}_pixels": share}
    print(json.dumps({"images": images, "survivors": len(x), "norm": "l2", "eps": EPS, "parts": found}, indent=2))


if __name__ == "__main__":
    main()
