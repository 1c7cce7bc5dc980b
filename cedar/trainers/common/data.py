"""An endless iterator over a loader, and rows of byte tokens for language models."""

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
    """Iterates over a loader's batches without end. ``none``: the error to raise if an epoch has no batch.

    ``waited`` is the number of seconds that the last call waited for its batch.
    """

    def __init__(self, loader: cedar.Loader, none: CedarError) -> None:
        self.loader, self.none, self.waited = loader, none, 0.0
        self._batches: Iterator[Any] | None = None
        if loader.url is not None:
            sys.stderr.write(f"rank {loader.rank.rank} of {loader.rank.world}: cedar top {loader.url!r}\n")

    def __next__(self) -> Any:
        """Return the next batch."""
        began = time.perf_counter()
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            for batch in self._batches:
                self.waited = time.perf_counter() - began
                return batch
            self._batches = None  # the epoch has ended; a new iterator starts the loader's next epoch
        raise self.none

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch: a few hundred bytes of JSON."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue from a saved position."""
        self._batches = None
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """Close the loader."""
        self._batches = None
        self.loader.close()


def byte_tokens(text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the bytes of a line, followed by a newline, as int32 tokens.

    Examples:
        >>> byte_tokens("hi").tolist()
        [104, 105, 10]
    """
    return np.frombuffer(text.encode() + b"\n", dtype=np.uint8).astype(np.int32)


def token_rows(paths: str | Sequence[str], length: int) -> cedar.Pipeline:
    """Return a pipeline with a column ``tokens``: the concatenated lines of text files, divided into ``length`` tokens.

    The last row is padded with zeros, on which the model is trained as on other bytes.
    """
    lines = cedar.read_text(paths if isinstance(paths, str) else list(paths)).select("text")
    return lines.map(byte_tokens, "text", into="tokens").select("tokens").pack(length, "tokens").select("tokens")
