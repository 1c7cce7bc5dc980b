"""Text as rows of tokens: a cedar pipeline that language models share. A token is a byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import cedar

VOCABULARY = 256


def byte_tokens(text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A line's bytes, with the end of the line.

    Example:
        >>> byte_tokens("hi").tolist()
        [104, 105, 10]
    """
    return np.frombuffer(text.encode() + b"\n", dtype=np.uint8).astype(np.int32)


def token_rows(paths: str | Sequence[str], length: int) -> cedar.Pipeline:
    """Rows of ``length`` tokens, cut from the lines of text files one after the other: column ``tokens``.

    Args:
        paths: files, globs or URLs.
        length: tokens of a row.
    """
    lines = cedar.read_text(paths if isinstance(paths, str) else list(paths)).select("text")
    return lines.map(byte_tokens, "text", into="tokens").select("tokens").pack(length, "tokens").select("tokens")
