"""tokenize: convert strings to lists of ids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.core.limits import parse_bytes
from cedar.operators.recsys.lists import lists_from
from cedar.operators.take import whole
from cedar.operators.text.byte_level import ByteLevel
from cedar.operators.text.encoders import Function, HuggingFace, Spec, Tiktoken
from cedar.operators.text.encoding import encode
from cedar.operators.text.string_column import Errors, StringColumn, is_text
from cedar.operators.transform import Transform


@dataclass(frozen=True)
class Tokenize(Transform):
    """Tokenize strings to lists of int32 ids, which equal the ids that the tokenizer itself returns.

    Most tokenizers split a text into words first. If cedar recognizes such a tokenizer, each worker caches the ids of
    words and calls the tokenizer only for new words, which is much faster. ``tokenize(...).how`` describes whether
    words are cached, and if not, why. Null strings stay null.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, the path of its tokenizer.json or of the folder with it, a fast tokenizer
            of ``transformers``, an encoding of ``tiktoken``, or a function that returns the ids of a text. A class is
            instantiated once per worker. The vocabulary is read immediately and becomes part of the pipeline. None
            tokenizes to bytes, as ``byte_level()`` does.
        special: whether to add the tokenizer's special ids, such as [CLS] and [SEP], before and after each text, if it
            has any.
        batched: whether the function accepts a list of strings and returns a list of lists of ids.
        errors: for invalid UTF-8 in a column of bytes: "strict" fails the row, "replace" inserts U+FFFD.
        longest: maximum amount of text to pass to the tokenizer in one piece, in bytes or as "4MiB". Rows with a longer
            piece that cannot be cut fail, since a tokenizer needs much memory and time for a long text.

    cedar disables a tokenizer's padding (use ``p.pad``). It keeps the truncation of a ``tokenizers.Tokenizer``; a
    tokenizer of ``transformers`` has none, since that library truncates only in calls with ``truncation=True``. If a
    text contains the name of a special token, tiktoken encodes it as plain text, and ``tokenizers`` as the special
    token.

    Raises:
        PipelineError: the tokenizer is invalid or uses dropout, or its library is missing.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"to": 0, "be": 1, "?": 2}, unk_token="?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> Tokenize(words)("to be or be")
        [0, 1, 2, 1]
    """

    tokenizer: Any = None
    special: bool = True
    batched: bool = False
    errors: Errors = "strict"
    longest: int | str = 4 << 20
    waits: ClassVar[bool] = True  # a user's function may wait, for example for I/O
    arity_fix: ClassVar[str] = (
        'name one column; for pairs, map a function of both: lambda a, b: tokenizer(a, b)["input_ids"]'
    )

    def __post_init__(self) -> None:
        if self.errors not in ("strict", "replace"):
            raise invalid_call(f'tokenize(errors={self.errors!r}): "strict" or "replace"', fix="give one of them")
        longest = self.longest
        if isinstance(longest, str):
            longest = parse_bytes(longest, "tokenize(longest)")
        object.__setattr__(self, "longest", whole(longest, "tokenize(longest)", least=1))
        object.__setattr__(self, "tokenizer", spec_of(self.tokenizer, self.batched))

    @property
    def how(self) -> str:
        """A description of how strings are tokenized: word by word with a cache, or text by text, and why."""
        if isinstance(self.tokenizer, ByteLevel):
            return "byte by byte"
        encoder = self.tokenizer.encoder()
        if encoder.traits.cutter is None:
            return f"text by text: {encoder.traits.why}"
        if self.special and encoder.special_ids is None:
            return "text by text: the special ids around a text are unknown"
        return f"word by word, since its splits ({encoder.traits.cutter.family}) allow it"

    @property
    def identity(self) -> str:
        """A string that is equal for transforms that return equal ids."""
        return f"{self.tokenizer.digest} {self.special} {self.errors}"

    @property
    def pooled(self) -> bool:
        """Whether the tokenizer's library uses its own threads."""
        if not isinstance(self.tokenizer, HuggingFace) or self.tokenizer.encoder().traits.cutter is not None:
            return False
        return os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in ("false", "f", "off", "no", "n", "0", "")

    def result(self, *types: Any) -> ColumnType:
        if not is_text(types[0]):
            raise self.unfit(types[0], "text")
        return pa.large_list(pa.int32())

    def columns(self, *columns: Column) -> Column:
        if isinstance(self.tokenizer, ByteLevel):
            return self.tokenizer.columns(*columns)
        strings = StringColumn.of(columns[0], self.errors)
        assert isinstance(self.longest, int)
        ids, offsets = encode(self.tokenizer.encoder(), strings, self.special, self.longest)
        return lists_from(ids, offsets, strings.missing)


def spec_of(tokenizer: Any, batched: bool = False) -> Spec | ByteLevel:
    """Return the spec for the ``tokenizer`` argument.

    Raises:
        PipelineError: the value is not a tokenizer.
    """
    if tokenizer is None:
        return ByteLevel()
    if isinstance(tokenizer, Spec | ByteLevel):
        return tokenizer
    if isinstance(tokenizer, str | os.PathLike):
        return HuggingFace.of(_read(os.fspath(tokenizer)))
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)  # unwraps fast tokenizers of transformers
    library = type(backend).__module__.partition(".")[0]
    if library == "tokenizers" and hasattr(backend, "to_str"):
        try:
            # transformers sets the truncation at each call: what the last call left behind is not the user's choice.
            return HuggingFace.of(backend.to_str(), truncation=backend is tokenizer)
        except Exception as error:  # the library raises this very class if a part is a Python object
            if type(error) is not Exception:
                raise
            fix = "give a function: lambda s: tokenizer.encode(s).ids"
            raise invalid_call(f"tokenize: the tokenizer cannot be saved: {error}", fix=fix) from None
    if library == "tiktoken" and hasattr(backend, "encode_ordinary"):
        return Tiktoken.of(backend)
    if callable(tokenizer):
        return Function(tokenizer, batched)
    raise invalid_call(
        f"tokenize: {type(tokenizer).__name__} is not a tokenizer",
        fix="a tokenizers.Tokenizer, the path of a tokenizer.json, a tiktoken encoding, or a function of a text",
    )


def _read(path: str) -> str:
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_call(
            f"tokenize: {path} cannot be read: {error}",
            fix="give the path of a tokenizer.json, or AutoTokenizer.from_pretrained(name) for a name on the Hub",
        ) from error
