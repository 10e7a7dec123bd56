"""What tells two models apart: their weights, wherever they are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tmifpe
from tests.linear import Linear


@pytest.mark.parametrize(
    "body",
    [
        (
            "class M(torch.nn.Module):\n"
            "        def __init__(s):\n            super().__init__(); s.nets = [net]\n"
            "        def forward(s, x): return s.nets[0](x.flatten(1))\n"
            "    return M()"
        ),
        "return lambda x: net(x.flatten(1))",
        "nets = {'a': [net]}\n    return lambda x: nets['a'][0](x.flatten(1))",
        "inner = lambda x: net(x.flatten(1))\n    return lambda x: inner(x)",
        (
            "class P:\n        def __init__(s): s.nets = [net]\n"
            "        def go(s, x): return s.nets[0](x.flatten(1))\n    return P().go"
        ),
    ],
)
def test_networks_out_of_torch_s_sight_still_tell_models_apart(tmp_path, body):
    (tmp_path / "fac.py").write_text(
        "import torch\nfrom pathlib import Path\n"
        "def build():\n"
        "    net = torch.nn.Linear(64, 10)\n"
        "    net.load_state_dict(torch.load(Path(__file__).parent / 'net.pt', weights_only=True))\n"
        f"    {body}\n"
    )
    names = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        torch.save(nn.Linear(64, 10).state_dict(), tmp_path / "net.pt")
        names.append(tmifpe.load_model(f"{tmp_path / 'fac.py'}:build").identity)
    assert names[0] == names[1] != names[2]


def test_networks_that_hold_each_other_have_an_identity():
    from tmifpe.models.identity import model_identity

    one, other = Linear(3), Linear(3)
    one.friends, other.friends = [other], [one]
    before = model_identity(one)
    assert before == model_identity(one)
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    assert model_identity(one) != before
