"""What Python callers hand over: tensors, Datasets, DataLoaders, and their mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

import tmifpe
from tests.linear import Linear, examples
from tmifpe import PGD, Threat
from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data import as_data, coverage, load_data, stratified, subset
from tmifpe.data.arrays import LazyData

X = torch.rand(7, 3, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(7)


class Pairs(Dataset):
    """A plain Dataset that counts what is read of it."""

    def __init__(self, x: torch.Tensor = X, y: torch.Tensor = Y) -> None:
        self.x, self.y, self.read = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        self.read += 1
        return self.x[position], int(self.y[position])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


FORMS = {
    "tensors": lambda: (X, Y),
    "list": lambda: [X, Y],
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "read-only arrays": lambda: (np.frombuffer(X.numpy().tobytes(), np.float32).reshape(X.shape), Y.numpy()),
    "int32 labels": lambda: (X, Y.to(torch.int32)),
    "uint8 labels": lambda: (X, Y.to(torch.uint8)),
    "channels last": lambda: (X.to(memory_format=torch.channels_last), Y),
    "non-contiguous": lambda: (X.transpose(2, 3).contiguous().transpose(2, 3), Y),
    "needs grad": lambda: (X.clone().requires_grad_(True), Y),
    "TensorDataset": lambda: TensorDataset(X, Y),
    "Dataset": Pairs,
    "loader in order": lambda: DataLoader(Pairs(), batch_size=3),
    "list of pairs": lambda: list(zip(X, Y.tolist(), strict=True)),
    "loader of a list of pairs": lambda: DataLoader(list(zip(X, Y.tolist(), strict=True)), batch_size=3),
    "loader of tensors": lambda: DataLoader(TensorDataset(X, Y), batch_size=2),
    "loader unbatched": lambda: DataLoader(Pairs(), batch_size=None),
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=2),
    "Data": lambda: as_data((X, Y)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_examples(form: str) -> None:
    data = as_data(FORMS[form]())
    assert isinstance(data, Data)
    assert len(data) == 7
    assert data.shape == (3, 4, 4)
    images, labels = data.fetch([6, 0, 3])
    torch.testing.assert_close(images, X[[6, 0, 3]], rtol=0, atol=0)
    assert labels.tolist() == [6, 0, 3]
    assert labels.dtype == torch.int64
    assert not images.requires_grad
    assert images.is_contiguous()
    assert list(data.indices) == list(range(7))


def test_lazy_reading() -> None:
    source = Pairs()
    data = as_data(DataLoader(source, batch_size=3))
    assert source.read == 0
    data.fetch([1, 2])
    assert source.read <= 3  # two examples, and the first one for its shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_dtypes_are_kept(dtype: torch.dtype) -> None:
    images, _ = as_data((X.to(dtype), Y)).fetch([0])
    assert images.dtype == dtype


def test_bytes_are_scaled() -> None:
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    for data in (as_data((x, [0] and torch.tensor([0]))), as_data(Pairs(x, torch.tensor([0])))):
        images, _ = data.fetch([0])
        torch.testing.assert_close(images.flatten(), torch.arange(256) / 255, rtol=0, atol=0)


def test_pictures_of_a_dataset_become_tensors() -> None:
    image = pytest.importorskip("PIL.Image")

    class Pictures(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, position: int):
            return image.fromarray(np.full((4, 5, 3), 255 * position, np.uint8)), position

    images, labels = as_data(Pictures()).fetch([1, 0])
    assert images.shape == (2, 3, 4, 5)
    assert images.amax((1, 2, 3)).tolist() == [1.0, 0.0]
    assert labels.tolist() == [1, 0]


def test_shuffled_loader_is_read_once_in_its_own_order() -> None:
    loader = DataLoader(Pairs(), batch_size=2, shuffle=True)  # draws from the global generator
    before = torch.get_rng_state()
    data = as_data(loader)
    assert torch.equal(torch.get_rng_state(), before)
    first, labels = data.fetch(range(7))
    again, _ = data.fetch(range(7))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert sorted(labels.tolist()) == list(range(7))
    torch.testing.assert_close(first, X[labels], rtol=0, atol=0)


def test_dropped_batches_stay_dropped() -> None:
    assert len(as_data(DataLoader(Pairs(), batch_size=3, drop_last=True))) == 6


def test_own_collate_is_honoured() -> None:
    def halve(batch):
        return torch.stack([x / 2 for x, _ in batch]), torch.tensor([y for _, y in batch])

    images, _ = as_data(DataLoader(Pairs(), batch_size=3, collate_fn=halve)).fetch([5])
    torch.testing.assert_close(images[0], X[5] / 2, rtol=0, atol=0)


def test_identity_follows_content() -> None:
    one, other = as_data((X, Y)), as_data((X.clone(), Y.to(torch.int32)))
    assert one.identity == other.identity
    changed = X.clone()
    changed[3, 0, 0, 0] = 0.123
    assert as_data((changed, Y)).identity != one.identity
    assert as_data((X, Y.flip(0))).identity != one.identity
    assert as_data(Pairs()).identity == as_data(Pairs()).identity
    assert as_data(Pairs(changed)).identity != as_data(Pairs()).identity


def test_flat_features_are_accepted() -> None:
    assert as_data((torch.rand(5, 9), torch.zeros(5, dtype=torch.long))).shape == (9,)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ((X, Y[:5]), "7 images but 5 labels"),
        ((X[:0], Y[:0]), "empty"),
        ((X, Y.float()), "integers"),
        ((X, Y.bool()), "integers"),
        ((X, Y - 1), "negative"),
        ((X, torch.zeros(7, 10, dtype=torch.long)), r"\(n,\)"),
        ((X.to(torch.int32), Y), "uint8"),
        ((X.to(torch.complex64), Y), "uint8"),
        ((torch.rand(7), Y), r"\(n, C, H, W\)"),
        ((torch.rand(7, 32, 32, 3), Y), "channels last"),
        ("mnist:DIR", "load_data"),
        (None, "Dataset"),
        (Stream(), "Dataset"),
        ((X,), "Dataset"),
        ((X.tolist(), Y.tolist()), "tensors or NumPy arrays, got list and list"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "empty"),
        (Pairs(X[:0]), "empty"),
    ],
)
def test_mistakes(bad: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_data(bad)


@pytest.mark.parametrize("value", [1.01, -0.01, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_range_on_fetch(value: float, dtype: torch.dtype) -> None:
    x = X.to(dtype).clone()
    x[2, 0, 0, 0] = value
    for data in (as_data((x, Y)), as_data(Pairs(x))):
        data.fetch([0, 1])
        with pytest.raises(InputError):
            data.fetch([1, 2])


def test_edges_of_the_box_and_subnormals_pass() -> None:
    x = torch.tensor([0.0, 1.0, 1e-45, 1.0]).reshape(1, 1, 2, 2)
    as_data((x, torch.tensor([0]))).fetch([0])


def test_examples_of_two_sizes() -> None:
    data = LazyData(lambda p: (torch.zeros(1, 4, 4 + p), 0), 3, "odd")
    with pytest.raises(InputError, match="one size"):
        data.fetch([0, 1])


def test_bad_labels_of_a_dataset() -> None:
    class Odd(Pairs):
        def __getitem__(self, position: int):
            return self.x[position], 0.5

    with pytest.raises(InputError, match="whole number"):
        as_data(Odd()).fetch([0])


def test_empty_fetch() -> None:
    for data in (as_data((X, Y)), as_data(Pairs()), load_data("digits")):
        images, labels = data.fetch([])
        assert images.shape == (0, *data.shape)
        assert labels.shape == (0,)


def test_a_loader_with_its_own_choice_of_examples_is_read_as_it_is():
    model = Linear(4, dtype=torch.float32)
    data = TensorDataset(*examples(model, 20))
    for loader in (
        DataLoader(data, batch_sampler=[[0, 1, 2], [7, 8]]),
        DataLoader(data, sampler=SequentialSampler(range(5))),
    ):
        assert tmifpe.evaluate(model, loader, Threat("linf", 0.01), PGD(steps=1), checks=False).n == 5


def test_a_loaders_own_generator_is_as_it_was():
    model = Linear(4, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    loader = DataLoader(TensorDataset(*examples(model, 6)), shuffle=True, generator=generator)
    tmifpe.evaluate(model, loader, Threat("linf", 0.01), PGD(steps=1), checks=False)
    assert torch.equal(generator.get_state(), before)


def test_a_sample_gives_every_class_its_share():
    labels = torch.arange(1000).div(250, rounding_mode="floor") // 2 * 2  # sorted: 500 of class 0, 500 of class 2
    labels[900:] = 1
    data = as_data((torch.zeros(1000, 1, 2, 2), labels))
    for n in (1, 2, 10, 99, 500, 1000):
        part = stratified(data, n)
        assert len(part) == n
        assert list(part.indices) == sorted(part.indices)
        counts = part.fetch(range(n))[1].bincount(minlength=3)
        shares = n * labels.bincount() / 1000
        assert bool((counts - shares).abs().max() <= 1), (n, counts)
    first, again, other = (list(stratified(data, 50, seed).indices) for seed in (0, 0, 1))
    assert first == again != other
    assert set(first) <= set(stratified(data, 60).indices)
    lazy = Pairs(torch.zeros(1000, 1, 2, 2), labels)
    assert list(stratified(as_data(lazy), 50).indices) == first
    assert coverage(subset(data, range(50)))
    assert not coverage(subset(data, first))
    assert not coverage(data)
