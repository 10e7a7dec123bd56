"""Files of data, damaged in every way: what is read was written, or one sentence; and nothing in them runs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from tests.data_files import bytes_of, idx
from tests.fuzz.fuzzing import damage, fuzz, mix, tried
from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data import as_data, load_data, read_indices, read_numbers, subset
from tmifpe.data.cifar import read_batch

Spoil = Callable[[bytes], bytes]


def read(text: str) -> Data:
    data = load_data(text)
    x, y = data.fetch(range(len(data)))
    assert x.dtype.is_floating_point
    assert ((x >= 0) & (x <= 1)).all()
    assert ((y >= 0) & (y < (data.classes or 2**62))).all()
    return data


@cache
def npz_bytes(packing: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for name, array in (("images", bytes_of(2, 1, 4, 4)), ("labels", np.arange(2))):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    return buffer.getvalue()


PACKINGS = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])


@fuzz(25, 400, packing=PACKINGS, spoil=damage())
def test_npz(packing: int, spoil: Spoil) -> None:
    Path("x.npz").write_bytes(spoil(npz_bytes(packing)))
    tried(lambda: read("npz:x.npz"))


HEADERS = st.sampled_from(
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 4, 4), }",
        "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 1, 4, 4), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 1048576), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (8589934592,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 32), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (True, 32), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2.0, 16), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 16), }",
        "{'descr': '<f16', 'fortran_order': False, 'shape': (1, 2), }",
        "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1, 4), }",
        "{'descr': '|V32', 'fortran_order': False, 'shape': (1, 1), }",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (1, 1), }",
        "{'descr': 5, 'fortran_order': False, 'shape': (1, 32), }",
        "{'descr': '|u1', 'fortran_order': 'no', 'shape': (2, 16), }",
        "{'descr': '|u1', 'shape': (2, 16), }",
        "{}",
        "(" * 5000,
        "[" * 200 + "]" * 200,
        "__import__('os').mkdir('ran')",
        "'\\N{DIGIT ONE}' '\\d'",
        "",
        "\0" * 20,
    ]
)


@fuzz(20, 200, header=HEADERS | st.text(max_size=40), version=st.sampled_from([b"\1\0", b"\2\0", b"\3\0", b"\xff\xff"]))
def test_npy_headers(header: str, version: bytes) -> None:
    text = header.encode(errors="replace")
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    images = b"\x93NUMPY" + version + size + text + bytes(range(32))
    labels = io.BytesIO()
    np.save(labels, np.arange(2))
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())
    Path("i.npy").write_bytes(images)
    tried(lambda: read("npz:x.npz"))
    tried(lambda: read_indices("i.npy"))
    assert not Path("ran").exists()


@cache
def idx_files() -> tuple[bytes, bytes]:
    return idx(bytes_of(2, 28, 28)), idx(np.arange(2))


@fuzz(
    25, 300, spoil=damage(), which=st.sampled_from(["images", "labels"]), packed=st.sampled_from(["", ".gz", "twice"])
)
def test_idx(spoil: Spoil, which: str, packed: str) -> None:
    for path in Path().glob("t10k*"):
        path.unlink()
    for name, content in zip(("images-idx3", "labels-idx1"), idx_files(), strict=True):
        if name.startswith(which):
            content = content if packed == "" else gzip.compress(content, 1)
            content = spoil(gzip.compress(content) if packed == "twice" else content)
            Path(f"t10k-{name}-ubyte{'.gz' if packed else ''}").write_bytes(content)
        else:
            Path(f"t10k-{name}-ubyte").write_bytes(content)
    tried(lambda: read("mnist:."))


@fuzz(
    15, 150, sizes=st.tuples(*[st.sampled_from([0, 1, 2, 28, 2**16, 2**31, 2**32 - 1])] * 3), extra=st.integers(0, 99)
)
def test_idx_that_declares_what_is_not_there(sizes: tuple[int, ...], extra: int) -> None:
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", *sizes)
    Path("t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + bytes(extra)))
    Path("t10k-labels-idx1-ubyte").write_bytes(idx_files()[1])
    found = tried(lambda: read("mnist:."))
    assert found is None or (len(found) == 2 and extra == sizes[0] * sizes[1] * sizes[2])


class Runs:
    """Unpickled by an ordinary unpickler, makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@cache
def batch_bytes(protocol: int) -> bytes:
    batch = {b"data": bytes_of(2, 3072), b"labels": [0, 1], b"filenames": [b"a.png", "b.png"]}
    return pickle.dumps(batch, protocol=protocol)


@fuzz(25, 400, protocol=st.integers(0, 5), spoil=damage(), payload=st.booleans())
def test_cifar_batches(protocol: int, spoil: Spoil, payload: bool) -> None:
    content = pickle.dumps({b"x": Runs()}, protocol=protocol) if payload else batch_bytes(protocol)
    Path("test_batch").write_bytes(spoil(content))
    tried(lambda: read("cifar10:."))
    assert not Path("ran").exists()


NAMES = [
    "os.mkdir",
    "builtins.eval",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.load",
    "numpy.core.numeric._frombuffer",
    "_codecs.encode",
    "copyreg._reconstructor",
    "numpy.fromfile",
]
GLOBALS = st.sampled_from(["c{}\n{}\n".format(*name.rsplit(".", 1)).encode() for name in NAMES])
PLAIN = ["(", ")", "}", "]", "R", "b", "t", "0", "2", "s", "a", "e", "u", "l", "d", "o", "N"]
LONG = ["I3\n", "I-1\n", "L99999999999999L\n", "Vran\n", "S'u1'\n", "p0\n", "g0\n", "q\0", "r\xff\xff\xff\x7f"]
LONG += ["\x96" + "\xff" * 7 + "\x7f", "\x8e\xff\xff\xff\xff\x0f\0\0\0", "\x8b\xff\xff\xff\x7f", "\x81", "\x88", "\x85"]
OPS = st.sampled_from([op.encode("latin1") for op in (*PLAIN, *LONG)])


@fuzz(40, 700, ops=st.lists(OPS | GLOBALS, max_size=14))
def test_pickles_written_by_hand(ops: list[bytes]) -> None:
    Path("batch").write_bytes(b"\x80\x04" + b"".join(ops) + b".")
    tried(lambda: read_batch(Path("batch"), "labels"))
    assert not Path("ran").exists()


LINES = st.lists(mix("1", "0,1", "+1", "-1", "+-5", "1 # one", "# none", "n01/x.JPEG", "9" * 30), max_size=5)


@fuzz(25, 350, lines=LINES, suffix=st.sampled_from(["txt", "npy", "csv", ""]), raw=st.none() | st.binary(max_size=60))
def test_indices(lines: list[str], suffix: str, raw: bytes | None) -> None:
    path = Path(f"indices.{suffix}")
    path.write_bytes(raw if raw is not None else "\n".join(lines).encode(errors="surrogatepass"))
    found = tried(lambda: read_indices(path))
    assert found is None or all(isinstance(index, int | str) for index in found)
    numbers = tried(lambda: read_numbers(path))
    if numbers is not None:
        torch.tensor(numbers)
    data = as_data((torch.rand(3, 1, 2, 2), torch.arange(3)))
    tried(lambda: subset(data, found or []))


@cache
def index_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(5))
    return buffer.getvalue()


@fuzz(20, 200, spoil=damage())
def test_npy_indices(spoil: Spoil) -> None:
    Path("i.npy").write_bytes(spoil(index_bytes()))
    found = tried(lambda: read_indices("i.npy"))
    assert found is None or all(isinstance(index, int) for index in found)


@cache
def picture_bytes(form: str) -> bytes:
    image, buffer = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.fromarray(bytes_of(6, 5, 3)).save(buffer, form)
    return buffer.getvalue()


@fuzz(20, 200, form=st.sampled_from(["png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"]), spoil=damage())
def test_pictures(form: str, spoil: Spoil) -> None:
    Path("folder/ant").mkdir(parents=True, exist_ok=True)
    for path in Path("folder/ant").iterdir():
        path.unlink()
    suffix = {"jpeg": "jpg"}.get(form, form)
    Path(f"folder/ant/{suffix}.{suffix}").write_bytes(spoil(picture_bytes(form)))
    tried(lambda: read("imagefolder:folder"))


PLACES = {
    "npz": "npz:thing.npz",
    "mnist": "mnist:place",
    "cifar10": "cifar10:place",
    "imagefolder": "imagefolder:place",
    "indices": "thing.npz",
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("kind", ["missing", "folder", "file", "loop", "dangling", "fifo", "unreadable name"])
def test_what_is_no_file(what: str, kind: str) -> None:
    """A folder for a file, a file for a folder, links that lead nowhere, a pipe that never answers."""
    for path in (Path("thing.npz"), Path("place")):
        if kind == "folder":
            path.mkdir()
        elif kind == "file":
            path.write_bytes(b"\xff hello")
        elif kind == "loop":
            path.symlink_to(path.name)
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "fifo":
            os.mkfifo(path)
    text = PLACES[what] if kind != "unreadable name" else PLACES[what].replace("thing", "\udcff\0")
    with pytest.raises(InputError):
        read_indices(text) if what == "indices" else read(text)


@pytest.fixture
def _little_memory() -> Any:
    """No more than 2 GiB beyond what this process has: an allocation that a file only declares then fails loudly."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to limit memory")
@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("bomb", ["npz", "npz-many", "idx", "gz", "npy", "pickle", "lzma", "bz2"])
def test_bombs(bomb: str) -> None:
    """A few bytes that declare, or would unpack to, gigabytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (7 << 30,)})
    if bomb in ("npz", "npz-many", "lzma", "bz2"):
        packing = {"lzma": zipfile.ZIP_LZMA, "bz2": zipfile.ZIP_BZIP2}.get(bomb, zipfile.ZIP_DEFLATED)
        with zipfile.ZipFile("x.npz", "w", packing) as archive:
            archive.writestr("images.npy", header.getvalue() + bytes(8 << 20))
            archive.writestr("labels.npy", header.getvalue())
        content = bytearray(Path("x.npz").read_bytes())
        for k in range(2 if bomb == "npz-many" else 1):  # let the directory declare what the header does
            at = [i for i in range(len(content)) if content[i : i + 4] == b"PK\1\2"][k]
            content[at + 20 : at + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
        Path("y.npz").write_bytes(content)
        with pytest.raises(InputError):
            read("npz:x.npz")
        with pytest.raises(InputError):
            read("npz:y.npz")
    elif bomb in ("idx", "gz"):
        content = bytes((0, 0, 8, 3)) + struct.pack(">3I", 7 << 20, 32, 32) + bytes(1 << 20)
        end = "" if bomb == "idx" else ".gz"
        Path(f"t10k-images-idx3-ubyte{end}").write_bytes(content if bomb == "idx" else gzip.compress(content))
        with pytest.raises(InputError, match="declares"):
            read("mnist:.")
    elif bomb == "npy":
        Path("i.npy").write_bytes(header.getvalue().replace(b"|u1", b"<i8"))
        with pytest.raises(InputError):
            read_indices("i.npy")
    else:
        for op in (b"\x8e" + struct.pack("<Q", 7 << 30), b"\x96" + struct.pack("<Q", 7 << 30), b"Nr\xff\xff\xff\x3f"):
            Path("batch").write_bytes(b"\x80\x05" + op + b".")
            with pytest.raises(InputError):
                read_batch(Path("batch"), "labels")


def test_the_bombs_are_real() -> None:
    """Without a check, these unpack to many times their size."""
    assert len(bz2.compress(bytes(1 << 20))) < 1000
    assert len(lzma.compress(bytes(1 << 20))) < 1000


def test_a_dtype_that_lies_does_not_reach_numpy() -> None:
    """A dtype whose state says "references" over bytes of the file makes numpy follow them as pointers."""

    class Dtype:
        def __reduce__(self) -> tuple[Any, ...]:
            inner = np.dtype("O")
            return np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (inner, 0)}, 8, 1, 1)

    class Array:
        def __reduce__(self) -> tuple[Any, ...]:
            made = np.zeros(1, np.uint8).__reduce__()[0]
            return made, (np.ndarray, (0,), b"b"), (1, (4,), Dtype(), False, b"\x41" * 32)

    Path("batch").write_bytes(pickle.dumps({"data": Array(), "labels": [0]}, protocol=2))
    with pytest.raises(InputError, match="no array 'data'"):
        read_batch(Path("batch"), "labels")


def test_a_thin_line_is_not_resized_to_gigabytes() -> None:
    image = pytest.importorskip("PIL.Image")
    from tmifpe.data.resize import PRESETS

    with pytest.raises(InputError, match="too narrow"):
        PRESETS["res256crop224"](image.new("L", (1, 60000)))
