"""Batches without end; and text as rows of tokens, which language models share: a token is a byte."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import cedar
from cedar.core.errors import CedarError

VOCABULARY = 256


class Endless:
    """What a loader gives, epoch after epoch. ``loader``: whose epochs follow each other; ``none``: to be raised where
    an epoch has no batch.

    ``waited`` is how many seconds the last batch was waited for.
    """

    def __init__(self, loader: cedar.Loader, none: CedarError) -> None:
        self.loader, self.none, self.waited = loader, none, 0.0
        self._batches: Iterator[Any] | None = None
        if loader.url is not None:
            sys.stderr.write(f"rank {loader.rank.rank} of {loader.rank.world}: cedar top {loader.url!r}\n")

    def __next__(self) -> Any:
        """The next batch."""
        began = time.perf_counter()
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            for batch in self._batches:
                self.waited = time.perf_counter() - began
                return batch
            self._batches = None  # the epoch is over; the loader has moved to the next
        raise self.none

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch is: JSON, a few hundred bytes."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue from there."""
        self._batches = None
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Stop reading."""
        self._batches = None
        self.loader.close()


def byte_tokens(text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A line's bytes, with the end of the line.

    Examples:
        >>> byte_tokens("hi").tolist()
        [104, 105, 10]
    """
    return np.frombuffer(text.encode() + b"\n", dtype=np.uint8).astype(np.int32)


def token_rows(paths: str | Sequence[str], length: int) -> cedar.Pipeline:
    """Rows of ``length`` tokens, cut from the lines of text files one after the other: column ``tokens``.

    The last row is filled with zeros, which are trained on as other bytes are.
    """
    lines = cedar.read_text(paths if isinstance(paths, str) else list(paths)).select("text")
    return lines.map(byte_tokens, "text", into="tokens").select("tokens").pack(length, "tokens").select("tokens")
