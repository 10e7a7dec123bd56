"""Recount a robust accuracy from exported adversarial examples, with torch alone (docs/run-store.md shows the use).

python benchmarks/recount.py MODEL.pt2 ADV.safetensors CLEAN.safetensors linf|l2 EPS
"""

import sys

import torch
from safetensors.torch import load_file

model = torch.export.load(sys.argv[1]).module()
adv, clean = load_file(sys.argv[2]), load_file(sys.argv[3])["x"].double()
x, labels, fooled = adv["adv"], adv["labels"], adv["fooled"]
with torch.no_grad():
    right = torch.cat([model(part).argmax(dim=1) for part in x.split(100)]) == labels
moved = (x.double() - clean).flatten(1)
size = moved.abs().amax(dim=1) if sys.argv[4] == "linf" else moved.norm(dim=1)
outside = (size > float(sys.argv[5]) + 1e-6) | (x.flatten(1).amin(dim=1) < 0) | (x.flatten(1).amax(dim=1) > 1)
print(f"robust {int(right.sum())} of {len(x)}; outside the threat {int(outside.sum())}")
print(f"claimed broken but classified correctly {int((fooled & right).sum())}")
