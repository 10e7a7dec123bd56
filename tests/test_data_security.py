"""Hostile files: nothing in them runs, nothing over-large is allocated, each gets one clear sentence."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import cases
from tmifpe.core.errors import InputError
from tmifpe.data import load_data
from tmifpe.data import npz as npz_module
from tmifpe.data.cifar import read_batch


class Payload:
    """Unpickled by an ordinary unpickler, makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "the-payload-ran"


def test_the_payload_is_real(mark: Path) -> None:
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_cifar_batch_with_payload(tmp_path: Path, mark: Path, protocol: int) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "extra": Payload(mark)}
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    with pytest.raises(InputError, match=r"asks for \w+\.mkdir, which is refused"):
        load_data(f"cifar10:{tmp_path}")
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    ["os system", "builtins eval", "numpy load", "numpy.core.multiarray scalar", "numpy.f2py.crackfortran myeval"],
)
def test_no_other_name_is_looked_up(tmp_path: Path, name: str) -> None:
    module, attribute = name.split()
    path = tmp_path / "batch"
    path.write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(InputError, match="refused"):
        read_batch(path, "labels")


def test_huge_array_in_pickle_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    # numpy.ndarray called with a shape of 2^40 bytes, and _reconstruct with the same
    path.write_bytes(b"cnumpy\nndarray\n((L1099511627776L\nttR.")
    with pytest.raises(InputError, match="not a CIFAR batch"):
        read_batch(path, "labels")
    path.write_bytes(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(L1099511627776L\ntS'b'\ntR.")
    with pytest.raises(InputError, match="not a CIFAR batch"):
        read_batch(path, "labels")


def test_other_codec_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(InputError, match="codec"):
        read_batch(path, "labels")


@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps({"data": [1]})])
def test_damaged_batch(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a CIFAR batch"):
        read_batch(path, "labels")


def test_batch_of_the_other_cifar(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]}))
    with pytest.raises(InputError, match="other CIFAR"):
        read_batch(path, "labels")


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def write_zip(path: Path, images: bytes) -> str:
    labels = io.BytesIO()
    np.save(labels, np.arange(2))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())
    return f"npz:{path}"


def test_over_large_npz_is_refused_before_allocation(tmp_path: Path) -> None:
    import tracemalloc

    text = write_zip(tmp_path / "bomb.npz", npy_header((2**20, 3, 2**10, 2**10)))
    tracemalloc.start()
    with pytest.raises(InputError, match="GiB"):
        load_data(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_header_must_agree_with_the_entry(tmp_path: Path) -> None:
    text = write_zip(tmp_path / "lie.npz", npy_header((1000, 3, 32, 32)) + b"\0" * 100)
    with pytest.raises(InputError, match="declares 3072000 bytes but its entry has 100"):
        load_data(text)


def test_highly_compressed_large_array_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_module, "_BOMB_BYTES", 1 << 20)  # the same rule at a size a test can write
    text = write_zip(tmp_path / "bomb.npz", npy_header((4, 3, 1024, 1024)) + b"\0" * (12 << 20))
    with pytest.raises(InputError, match="would unpack"):
        load_data(text)


@pytest.mark.parametrize("shape", [(-1, 3, 4, 4), (2, -3, 4, 4)])
def test_negative_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="negative"):
        load_data(write_zip(tmp_path / "n.npz", npy_header(shape)))


def test_object_array_is_not_unpickled(tmp_path: Path, mark: Path) -> None:
    path = tmp_path / "object.npz"
    np.savez(path, images=np.array([Payload(mark)], dtype=object), labels=np.arange(1))
    with pytest.raises(InputError, match="never unpickled"):
        load_data(f"npz:{path}")
    assert not mark.exists()


@pytest.mark.parametrize("key", ["images", "labels"])
def test_missing_array(tmp_path: Path, key: str) -> None:
    arrays = {"images": np.zeros((2, 1, 4, 4), np.uint8), "labels": np.arange(2)}
    del arrays[key]
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=f"no array '{key}'"):
        load_data(f"npz:{tmp_path / 'a.npz'}")


_GOOD = io.BytesIO()
np.savez_compressed(_GOOD, images=np.arange(96, dtype=np.uint8).reshape(2, 3, 4, 4), labels=np.arange(2))


@settings(max_examples=cases(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(_GOOD.getvalue()) - 1), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_npz_never_gives_a_traceback(tmp_path: Path, place: int, value: int, cut: bool) -> None:
    content = bytearray(_GOOD.getvalue())
    if cut:
        content = content[:place]
    else:
        content[place] = value
    path = tmp_path / "fuzz.npz"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        data = load_data(f"npz:{path}")
        data.fetch(range(len(data)))


@settings(max_examples=cases(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), whole=st.booleans())
def test_damaged_batch_never_gives_a_traceback(tmp_path: Path, content: bytes, whole: bool) -> None:
    good = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [0]}, protocol=2)
    path = tmp_path / "fuzz"
    path.write_bytes(content if whole else good[:40] + content + good[40 + len(content) :])
    with contextlib.suppress(InputError):
        read_batch(path, "labels")
