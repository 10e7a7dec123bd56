"""Bounds hold: on random networks no image of a region lies outside, in real arithmetic or as the model computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tmifpe
from tests.cases import cases
from tmifpe.certificates import bounds
from tmifpe.certificates.certifier import Certifier
from tmifpe.certificates.node import Graph
from tmifpe.certificates.rounding import Rounding
from tmifpe.core import numerics
from tmifpe.models.normalize import Normalize

CLASSES = 4
ROWS = 3


class Sum(nn.Module):
    """A residual block, or one of its relations."""

    def __init__(self, branch: nn.Module, how: str) -> None:
        super().__init__()
        self.branch, self.how = branch, how

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        if self.how == "cat":
            return torch.cat([x, y.clamp(-0.5, 0.75)], dim=1)
        return x - 0.5 * y if self.how == "sub" else 0.3 + (y + x) * 1.5


def activation(pick: torch.Generator) -> nn.Module:
    kinds = [
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.1),
        nn.LeakyReLU(-0.3),
        nn.ReLU6(),
        nn.Hardtanh(-0.4, 0.6),
    ]
    return kinds[number(pick, len(kinds))]


def number(pick: torch.Generator, most: int) -> int:
    return int(torch.randint(most, (1,), generator=pick))


def random_network(seed: int, shape: tuple[int, int, int]) -> nn.Module:
    """Two to four blocks of layers that bounds are known for, with weights as a layer has them or larger."""
    pick = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    channels = shape[0]
    for _ in range(2 + number(pick, 3)):
        kind = number(pick, 6)
        if kind == 0:
            layers += [nn.Conv2d(channels, 4, 3, stride=1 + number(pick, 2), padding=1), activation(pick)]
            channels = 4
        elif kind == 1:
            layers += [nn.Conv2d(channels, 2 * channels, 2, padding=1, groups=channels), nn.BatchNorm2d(2 * channels)]
            layers += [activation(pick)]
            channels *= 2
        elif kind == 2:
            layers += [Sum(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), activation(pick)), "add")]
        elif kind == 3:
            layers += [Sum(nn.Conv2d(channels, channels, 1), "sub"), activation(pick)]
        elif kind == 4:
            layers += [Sum(nn.Conv2d(channels, 2, 1), "cat")]
            channels += 2
        else:
            pools = [nn.MaxPool2d(2, padding=1), nn.MaxPool2d(3, stride=1, padding=1), nn.AvgPool2d(2, padding=1)]
            layers += [pools[number(pick, len(pools))], nn.ZeroPad2d((1, 0, 0, 1))]
    layers += [
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 6),
        activation(pick),
        nn.Linear(6, CLASSES),
    ]
    network = Normalize(nn.Sequential(*layers), [0.4] * shape[0], [0.3] * shape[0])
    scale = 1.0 + number(pick, 3)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and tensor is not network.mean and tensor is not network.std:
            spread = scale * torch.rand(tensor.shape, generator=pick) - scale / 2
            tensor.data.copy_(spread / max(1, tensor[0].numel()) ** 0.5 if tensor.dim() > 1 else spread)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_var.abs_().add_(0.05)
    return network.eval()


def points_of(region: bounds.Region, seed: int, count: int = 24) -> Tensor:
    """Images of a region (count, n, ...): its middle, corners and others, in float64."""
    pick = torch.Generator().manual_seed(seed)
    share = torch.rand(count, *region.low.shape, generator=pick, dtype=torch.float64)
    share[: count // 2] = share[: count // 2].round()
    share[0] = 0.5
    return region.low + share * (region.high - region.low)


def climbed(model: nn.Module, region: bounds.Region, labels: Tensor, start: Tensor, steps: int = 12) -> Tensor:
    """What an attack finds: signed gradient steps on the margin, clipped to the region."""
    x = start.clone()
    for step in range(steps):
        x.requires_grad_()
        (grad,) = torch.autograd.grad(numerics.margin(model(x), labels).sum(), x)
        width = (region.high - region.low) / (2 + step)
        x = torch.clamp(x.detach() + width * grad.sign(), region.low, region.high)
    return x


def check_bounds(seed: int) -> None:
    pick = torch.Generator().manual_seed(seed)
    shape = (1 + number(pick, 2), 5, 6)
    low = -float(torch.rand(1, generator=pick)) * number(pick, 2)
    threat = tmifpe.Threat("linf", 1.0, low, low + 0.5 + float(torch.rand(1, generator=pick)))
    x = low + torch.rand(ROWS, *shape, generator=pick) * (threat.high - low)
    x = x.clamp(threat.low, threat.high)
    eps = 10.0 ** -(4 * torch.rand(ROWS, generator=pick, dtype=torch.float64))
    model = random_network(seed, shape)
    labels = model(x).detach().argmax(dim=1)
    certifier = Certifier.of(model, x[:1], threat)
    region = certifier._region(x, eps)
    double = random_network(seed, shape).double()
    found = certifier.margin_bounds(x, labels, eps)
    points = points_of(region, seed)
    points[-1] = climbed(double, region, labels, points[0])
    check_margins(model, double, points, labels, found)
    check_nodes(certifier.network, region, points)


def check_margins(model: nn.Module, double: nn.Module, points: Tensor, labels: Tensor, found: Tensor) -> None:
    """Float64 stands for real arithmetic: it is off by about 1e-15, and the bounds hold with room for float32."""
    several, images = labels.repeat(len(points)), points.flatten(0, 1)
    with torch.no_grad():
        for logits in (double(images), model(images.float())):
            margins = numerics.margin(logits.double(), several).reshape(len(points), -1)
            assert bool((margins <= found).all())


def check_nodes(network: Graph, region: bounds.Region, points: Tensor) -> None:
    """Every node stays in its range, by either method. Float64's own rounding of a value is allowed for."""
    with torch.no_grad():
        values = [points.flatten(0, 1)]
        for node in network.nodes:
            values.append(node.value(*(values[i] for i in node.inputs)))
        for method in (bounds.ranges_by_intervals, bounds.ranges_by_crown):
            for value, reach in zip(values, method(network, region, Rounding(torch.float32)), strict=True):
                slack = Rounding(torch.float64).of(reach.size, network.longest)
                several = value.reshape(len(points), *reach.low.shape)
                assert bool((several >= reach.low - slack).all())
                assert bool((several <= reach.high + slack).all())


@pytest.mark.numerical
@pytest.mark.convolutional
@settings(max_examples=cases(12), deadline=None)
@given(seed=st.integers(0, 2**31))
def test_no_image_lies_outside(seed: int) -> None:
    check_bounds(seed)


@pytest.mark.slow
@settings(max_examples=cases(100), deadline=None)
@given(seed=st.integers(0, 2**31))
def test_no_image_lies_outside_on_a_hundred_networks(seed: int) -> None:
    check_bounds(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=cases(2000), deadline=None)
@given(seed=st.integers(0, 2**31))
def test_no_image_lies_outside_on_two_thousand_networks(seed: int) -> None:
    check_bounds(seed)
