"""Functions whose bytes tell one numeric environment, thread or process from another, and the digest of an epoch."""

from __future__ import annotations

import hashlib
import hmac
import io
import math
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from typing import Any

import numpy as np

import cedar

ROWS = 24
_SIDE = 160  # of matrices: OpenBLAS and torch share the work of such among threads


def matrix(x: int, rows: int = _SIDE, columns: int = _SIDE, kind: str = "f4") -> np.ndarray:
    """One that a number fixes; entries of about 1, so that sums round."""
    return np.sin(np.arange(rows * columns, dtype=kind).reshape(rows, columns) * (0.37 + x))


_SCALE = matrix(2, 1, 64)[0]


# ---- BLAS, LAPACK, FFT -----------------------------------------------------------------------------------------------


def gemm(x: int) -> Any:
    return (matrix(x) @ matrix(x + 1))[::16, ::16].ravel()


def gemm_double(x: int) -> Any:
    return (matrix(x, kind="f8") @ matrix(x + 1, kind="f8"))[::16, ::16].ravel()


def gemv(x: int) -> Any:
    return (matrix(x, 400, 400) @ matrix(x, 400, 1))[::8].ravel()


def dot(x: int) -> Any:
    return np.dot(matrix(x, 1, 40_000)[0], matrix(x + 1, 1, 40_000)[0])


def einsum(x: int) -> Any:
    return np.einsum("ij,jk->ik", matrix(x, 100, 100), matrix(x, 100, 100), optimize=True)[::10].ravel()


def solved(x: int) -> Any:
    return np.linalg.solve(matrix(x, 80, 80, "f8") + 80 * np.eye(80), np.ones(80))


def values(x: int) -> Any:
    return np.linalg.svd(matrix(x, 60, 60, "f8"), compute_uv=False)


def decomposed(x: int) -> Any:
    return np.linalg.qr(matrix(x, 90, 90, "f8"))[1][::9].ravel()


def inverted(x: int) -> Any:
    return np.linalg.inv(matrix(x, 70, 70, "f8") + 70 * np.eye(70))[::7].ravel()


def spectrum(x: int) -> Any:
    return np.abs(np.fft.rfft(matrix(x, 1, 4096)[0]))[::16]


def plane(x: int) -> Any:
    return np.abs(np.fft.fft2(matrix(x, 64, 64)))[::8].ravel()


# ---- NumPy's own -----------------------------------------------------------------------------------------------------


def summed(x: int) -> Any:
    return np.array([matrix(x).sum(), matrix(x).mean(), matrix(x).std()])


def sorted_(x: int) -> Any:
    return np.sort(matrix(x).ravel())[::500]


def denormal(x: int) -> Any:
    return np.float64(5e-324) * (np.arange(8) + x) * 0.75


def keyed(x: int, rng: np.random.Generator) -> Any:
    """Draws that are keyed by the row."""
    return rng.normal(size=8) * x


# ---- torch -----------------------------------------------------------------------------------------------------------


def tensor(x: int, *shape: int) -> Any:
    import torch

    return torch.from_numpy(matrix(x, 1, math.prod(shape))).reshape(shape)


def torch_product(x: int) -> Any:
    return (tensor(x, 200, 200) @ tensor(x + 1, 200, 200))[::20].flatten().numpy()


def torch_sum(x: int) -> Any:
    return tensor(x, 70_000).sum().item()


def torch_softmax(x: int) -> Any:
    return tensor(x, 300, 200).softmax(0)[::30].flatten().numpy()


def torch_layer_norm(x: int) -> Any:
    import torch

    return torch.nn.functional.layer_norm(tensor(x, 300, 200), (200,))[::30].flatten().numpy()


def torch_convolution(x: int) -> Any:
    import torch

    return torch.nn.functional.conv2d(tensor(x, 1, 8, 40, 40), tensor(x + 1, 16, 8, 3, 3))[0, :, ::9].flatten().numpy()


def torch_attention(x: int) -> Any:
    import torch

    q = tensor(x, 1, 2, 64, 32)
    return torch.nn.functional.scaled_dot_product_attention(q, q + 1, q - 1)[0, :, ::16].flatten().numpy()


def torch_spectrum(x: int) -> Any:
    import torch

    return torch.fft.rfft(tensor(x, 2, 2048)).abs()[:, ::64].flatten().numpy()


def torch_gradient(x: int) -> Any:
    weight = tensor(x, 120, 120).clone().requires_grad_()
    (weight @ tensor(x + 1, 120, 120)).tanh().sum().backward()
    return weight.grad[::12].flatten().numpy()


def torch_denormal(x: int) -> Any:
    return (tensor(x, 16) * 1e-38 * 1e-3).numpy()


# ---- classes ---------------------------------------------------------------------------------------------------------


class SeededTorch:
    """Seeds torch for itself, as models do."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))

    def __call__(self, x: int) -> Any:
        return self.model(tensor(x, 64)).detach().numpy()


class SeededNumPy:
    def __init__(self) -> None:
        np.random.seed(3)  # noqa: NPY002 - as users do
        self.weights = np.random.normal(size=(8, 64))  # noqa: NPY002

    def __call__(self, x: int) -> Any:
        return self.weights @ matrix(x, 1, 64)[0]


class SeededPython:
    def __init__(self) -> None:
        random.seed(5)
        self.words = [random.random() for _ in range(32)]

    def __call__(self, x: int) -> Any:
        return self.words[x % 32] * x


class Unseeded:
    """Draws from whatever the generators of the process are at."""

    def __init__(self) -> None:
        import torch

        drawn = np.random.normal(size=4)  # noqa: NPY002
        self.bias = np.append(drawn, [random.random(), torch.rand(()).item()])

    def __call__(self, x: int) -> Any:
        return self.bias + x


class Orthogonal:
    """Computes what it needs with LAPACK, once."""

    def __init__(self) -> None:
        import torch

        self.turn = torch.nn.init.orthogonal_(torch.empty(96, 96))

    def __call__(self, x: int) -> Any:
        return (self.turn @ tensor(x, 96)).numpy()


# ---- closures, generators, arrays of rows ----------------------------------------------------------------------------


def closure() -> Callable[[int], Any]:
    weights = matrix(7, 200, 200)
    return lambda x: (weights @ matrix(x, 200, 1))[:16, 0]


def with_default(x: int, scale: np.ndarray = _SCALE) -> Any:
    return scale * x


def pieces(x: int) -> Iterator[float]:
    for k in range(x % 4):
        yield float((matrix(x + k, 120, 120) @ matrix(k, 120, 120)).sum())


async def later(x: int) -> Any:
    import asyncio

    await asyncio.sleep(0)
    return gemm(x)


def product(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": np.stack([matrix(int(x)).sum(0)[:8] for x in batch["x"]]) @ matrix(1, 8, 8)}


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {"y": torch.stack([tensor(int(x), 150, 150).matmul(tensor(1, 150, 150))[0] for x in batch["x"]])}


# ---- numba, and libraries in C ---------------------------------------------------------------------------------------


def jitted(x: int) -> Any:
    return compiled(parallel=False)(matrix(x, 1, 5000, "f8")[0])


def parallel(x: int) -> Any:
    return compiled(parallel=True)(matrix(x, 1, 5000, "f8")[0])


@cache
def compiled(parallel: bool) -> Any:
    import numba

    def squares(values: Any) -> float:
        total = 0.0
        for k in numba.prange(len(values)):
            total += values[k] * values[k]
        return total

    return numba.njit(parallel=parallel)(squares)


def packed(x: int) -> Any:
    return zlib.compress(matrix(x, 20, 20).tobytes(), 6)


def hashed(x: int) -> Any:
    return hmac.new(b"key", struct.pack("<q", x), hashlib.sha256).digest()


def picture(x: int) -> Any:
    from PIL import Image

    image = Image.fromarray((matrix(x, 24, 24) * 127 + 128).astype("u1")).resize((17, 17), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def added(x: int) -> Any:
    return math.fsum(matrix(x, 1, 500)[0].tolist()) + reduce(math.hypot, matrix(x, 1, 500)[0].tolist())


def frame(table: Any) -> Any:
    return table.with_columns(y=(table["x"] * 0.1).sin() / 3)


def plain(fn: Callable[..., Any], **options: Any) -> Callable[[cedar.Pipeline], cedar.Pipeline]:
    return lambda rows: rows.map(fn, "x", into="y", **options)


OF_ROWS: tuple[Any, ...] = (
    gemm, gemm_double, gemv, dot, einsum, solved, values, decomposed, inverted, spectrum, plane, summed, sorted_,
    denormal, torch_product, torch_sum, torch_softmax, torch_layer_norm, torch_convolution, torch_attention,
    torch_spectrum, torch_gradient, torch_denormal, SeededTorch, SeededNumPy, SeededPython, Unseeded, Orthogonal,
    with_default, later, jitted, parallel, packed, hashed, picture, added,
)  # fmt: skip

FUNCTIONS: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    **{fn.__name__.rstrip("_"): plain(fn) for fn in OF_ROWS},
    "keyed": plain(keyed, random=True),
    "partial": plain(partial(with_default, scale=matrix(9, 1, 32)[0])),
    "closure": lambda rows: rows.map(closure(), "x", into="y"),
    "pieces": lambda rows: rows.flat_map(pieces, "x", into="y", dtype=float),
    "product": lambda rows: rows.map_batches(product, size=6, format="numpy"),
    "tensors": lambda rows: rows.map_batches(tensors, size=6, format="torch"),
    "frame": lambda rows: rows.map_batches(frame, format="polars"),
}


def pipeline(name: str, count: int = ROWS) -> cedar.Pipeline:
    """So many rows through the function of that name, in batches of four."""
    rows = cedar.from_items([{"x": i} for i in range(count)])
    return FUNCTIONS[name](rows).shuffle(seed=1).batch(4, last="keep")


def digest(loader: cedar.Loader) -> str:
    """Stands for the bytes of an epoch."""
    found = hashlib.blake2b(digest_size=8)
    with loader:
        for batch in loader:
            for name, column in sorted(batch.items()):
                found.update(f"{name} {column.dtype} {column.shape}".encode())
                found.update(repr(column.tolist()).encode() if column.dtype == object else column.tobytes())
    return found.hexdigest()
