"""A plan of 3 models x 4 attacks x 2 radii, in two shards each, that takes no time."""

from __future__ import annotations

FACTORY = """
import torch
class Tiny(torch.nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.weight = torch.nn.Parameter(sign * torch.linspace(-1, 1, 640).reshape(10, 64))
    def forward(self, x):
        return x.flatten(1) @ self.weight.t()
def up(): return Tiny(1.0)
def down(): return Tiny(-1.0)
def boom(): raise RuntimeError("out of cheese")
"""
PLAN = """
store = "kept"
[defaults]
limit = 8
shard_size = 4
checks = false
steps = 2
[[run]]
name = "all"
model = ["tiny.py:up", "tiny.py:down", "digits-robust"]
attack = ["ce", "tmifpe", "cw", "gama"]
eps = [0.05, "0.1"]
[outputs]
json = "out.json"
junit = "out.xml"
"""
