"""Helpers for computation: device selection, keyed random numbers, AdamW and self-attention."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError

_ASK_SECONDS = 60.0  # maximum seconds for the answer of a forked process


def ask_fork(ask: Callable[[], int]) -> int:
    """Call ``ask`` in a forked process, and return its result; 0 if it fails or takes longer than a minute.

    Any CUDA query, even for the number of GPUs, initializes CUDA. Processes forked after that cannot use CUDA.

    Examples:
        >>> ask_fork(lambda: 3)
        3
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, str(int(ask())).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        in_time = select.select([answer], [], [], _ASK_SECONDS)[0]
        if not in_time:  # for example, it waits for a lock that a thread of this process held at the fork
            os.kill(child, signal.SIGKILL)
        reported = answer.read()
    os.waitpid(child, 0)
    return int(reported or 0)


def count_gpus() -> int:
    """Return the number of GPUs that torch finds, without initializing CUDA in this process."""
    if torch.cuda.is_initialized() or not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return torch.cuda.device_count()
    return ask_fork(torch.cuda.device_count)


def device_of(name: str) -> torch.device:
    """Return the device for ``run.device``; ``auto`` selects a GPU if torch finds one, else the CPU. This does not
    initialize CUDA in the process.

    Examples:
        >>> device_of("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if count_gpus() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CedarError(f"run.device is {name!r}: {error}", fix="give cpu, cuda or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise CedarError(f"run.device is {name!r}, which cedar does not support", fix="give cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= (gpus := count_gpus()):
        raise CedarError(
            f"run.device is {name!r}, but torch sees {gpus} GPU(s)",
            fix="set run.device=cpu, or install a torch that is built for the GPUs of this machine",
        )
    return device


_DRAWING = threading.RLock()  # protects torch's default generator, which all threads share


def digest(value: object) -> int:
    """Return a 63-bit hash of ``repr(value)``; different values almost never share it.

    Examples:
        >>> digest((1, "a")) == digest((1, "a")) != digest((1, "b"))
        True
    """
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest()) >> 1


def generator(device: torch.device | str, *key: object) -> torch.Generator:
    """Return a torch.Generator whose numbers depend only on the key.

    Examples:
        >>> torch.equal(*(torch.rand(3, generator=generator("cpu", 0, "a")) for _ in range(2)))
        True
    """
    return torch.Generator(device).manual_seed(digest(key))


@contextmanager
def keyed(device: torch.device | str, *key: object) -> Iterator[None]:
    """A context manager in which torch's random numbers, such as dropout masks, depend only on the key.

    Examples:
        >>> for _ in range(2):
        ...     with keyed("cpu", 0, "a"):
        ...         torch.rand(1).item() == torch.rand(1).item()
        False
        False
    """
    device = torch.device(device)
    with _DRAWING, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(digest(key))
        yield


Factor: TypeAlias = float | torch.Tensor


@torch.no_grad()
def adamw(
    weights: torch.Tensor, first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor, *, rate: Factor,
    decay: Factor, betas: Sequence[float], eps: float, step: int,
) -> None:  # fmt: skip
    """Apply AdamW's update number ``step``, from 1, in place. ``rate`` and ``decay`` may be tensors that broadcast."""
    one, two = betas
    first.mul_(one).add_(gradient, alpha=1 - one)
    second.mul_(two).addcmul_(gradient, gradient, value=1 - two)
    size = (second / (1 - two**step)).sqrt_().add_(eps)
    weights.mul_(1 - rate * decay)
    weights.sub_((first / (1 - one**step)).div_(size).mul_(rate))


class Attention(nn.Module):
    """Multi-head self-attention between the tokens of a row.

    Args:
        heads: number of attention heads; must divide ``width``.
        bias: whether the query/key/value projection and the output projection have a bias.
        causal: whether a token attends only to itself and to earlier tokens.
    """

    def __init__(
        self, width: int, heads: int, *, bias: tuple[bool, bool] = (False, False), causal: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mixed = nn.Linear(width, 3 * width, bias=bias[0])
        self.out = nn.Linear(width, width, bias=bias[1])

    def forward(self, x: torch.Tensor, runs: Sequence[tuple[int, int]] = ()) -> torch.Tensor:
        """Map ``[rows, length, width]`` to the same shape. If ``runs`` is given, ``x`` is ``[tokens, width]``, the
        concatenation of rows of several lengths, and each run is (number of rows, their length).
        """
        runs, mixed = runs or [(x.shape[0], x.shape[1])], self.mixed(x).flatten(0, -2)
        parts = [
            self._seen(part.view(rows, length, part.shape[1])).flatten(0, 1) if length else part[:, : x.shape[-1]]
            for part, (rows, length) in zip(mixed.split([n * m for n, m in runs]), runs, strict=True)
        ]
        attended: torch.Tensor = self.out(parts[0] if len(parts) == 1 else torch.cat(parts))
        return attended.view(x.shape)

    def _seen(self, mixed: torch.Tensor) -> torch.Tensor:
        rows, length, width = mixed.shape
        queries, keys, values = mixed.view(rows, length, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        return seen.transpose(1, 2).reshape(rows, length, width // 3)
