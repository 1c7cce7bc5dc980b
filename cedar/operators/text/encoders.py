"""Encoders convert strings to ids with any supported tokenizer.

A *spec* describes a tokenizer as a plain value, which can be compared and sent to workers. In each process, it
constructs one *encoder*, which caches the ids of words.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import Index
from cedar.core.digests import digest_of
from cedar.core.errors import invalid_call, raised
from cedar.core.process import Lock
from cedar.operators.functions import fn_name, makes_instances
from cedar.operators.instances import Instances, constructed
from cedar.operators.text.recognize import TokenizerTraits, traits_of_pattern, traits_of_tokenizer
from cedar.operators.text.words import Ids, TokenCache

_MAX_ENCODERS = 8  # maximum number of encoders per process
_encoders_lock = Lock()
_encoders: OrderedDict[str, Encoder] = OrderedDict()


class UnfitIds(Exception):
    """Raised if a tokenizer returns no list of ids for some strings; ``reasons`` maps indices of strings to reasons."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(next(iter(reasons.values()), ""))
        self.reasons = reasons


class Encoder(ABC):
    """Converts strings to ids; constructed once per process."""

    def __init__(self, traits: TokenizerTraits, special_ids: tuple[list[int], list[int]] | None = ([], [])) -> None:
        self.traits = traits
        self.special_ids = special_ids  # special ids to add before and after each text; None if unknown

    @cached_property
    def token_cache(self) -> TokenCache:
        """The cache of the ids of words."""
        return TokenCache()

    @abstractmethod
    def encode(self, strings: Sequence[str], special: bool) -> tuple[Ids, Index]:
        """Return the concatenated ids of all strings, int32, and the number of ids of each string, int64.

        Raises:
            UnfitIds: for some strings, the tokenizer raised or did not return a list of ids.
        """

    def encode_pieces(self, strings: Sequence[str]) -> tuple[Ids, Index]:
        """Encode pieces of strings like ``encode``, without special ids. Only for tokenizers with a cutter."""
        return self.encode(strings, False)


class Spec(ABC):
    """A description of a tokenizer as a plain value that can be sent to workers."""

    digest: str
    pooled: ClassVar[bool] = False  # whether the library uses its own threads

    @abstractmethod
    def make(self) -> Encoder:
        """Construct the encoder, which may load a tokenizer."""

    @abstractmethod
    def token_to_id(self, token: str) -> int | None:
        """Return the id of the token with a name, or None if there is no such token."""

    def encoder(self) -> Encoder:
        """Return this process's encoder; the first call constructs it."""
        with _encoders_lock:
            if self.digest not in _encoders:
                while len(_encoders) >= _MAX_ENCODERS:
                    _encoders.popitem(last=False)
                _encoders[self.digest] = self.make()
            _encoders.move_to_end(self.digest)
            return _encoders[self.digest]


def flat_ids(lists: Iterable[Any]) -> tuple[Ids, Index]:
    """Concatenate lists of ids; return the ids and the length of each list.

    Raises:
        UnfitIds: an entry is not a list of 32-bit integers.
    """
    id_lists = list(lists)
    try:
        counts = np.fromiter(map(len, id_lists), dtype=np.int64, count=len(id_lists))
        flat = array("i", chain.from_iterable(id_lists))  # rejects other types, unlike NumPy, and is as fast
        return np.frombuffer(flat, dtype=np.int32), counts
    except (TypeError, ValueError, OverflowError):
        unfit = {number: why for number, ids in enumerate(id_lists) if (why := _unfit_reason(ids))}
        if not unfit:
            raise
        raise UnfitIds(unfit) from None


def _unfit_reason(ids: Any) -> str | None:
    try:
        array("i", iter(ids))
        len(ids)
    except (TypeError, ValueError, OverflowError) as error:
        return f"the tokenizer returned {str(ids)[:60]!r}, which is not a list of ids: {error}"
    return None


# ---- Hugging Face ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HuggingFace(Spec):
    """A tokenizer of Hugging Face's ``tokenizers``: the text of its tokenizer.json, with padding disabled."""

    text: str = field(repr=False, compare=False)
    digest: str

    @staticmethod
    def of(text: str, truncation: bool = True) -> HuggingFace:
        """Create a spec from the text of a tokenizer.json, without its truncation if ``truncation`` is False.

        Raises:
            PipelineError: the text is not a tokenizer, or the tokenizer uses dropout.
        """
        library = tokenizers_library()
        try:
            spec = json.loads(text)
            library.Tokenizer.from_str(text)
            dropout = spec["model"].get("dropout")
        except Exception as error:
            raise invalid_call(f"tokenize: this is not a tokenizer.json: {error}") from error
        if dropout:
            raise invalid_call(
                f"tokenize: the tokenizer drops merges at random (dropout={dropout})",
                fix="set tokenizer.model.dropout = None, since a text must always give the same ids",
            )
        spec["padding"] = None
        if not truncation:
            spec["truncation"] = None
        text = json.dumps(spec, ensure_ascii=False)
        return HuggingFace(text, _digest("tokenizers", text))

    def make(self) -> Encoder:
        return _HuggingFaceEncoder(self.text)

    def token_to_id(self, token: str) -> int | None:
        number: int | None = tokenizers_library().Tokenizer.from_str(self.text).token_to_id(token)
        return number


class _HuggingFaceEncoder(Encoder):
    def __init__(self, text: str) -> None:
        traits = traits_of_tokenizer(text)
        self._whole = tokenizers_library().Tokenizer.from_str(text)
        self._pieces = tokenizers_library().Tokenizer.from_str(_without_prefix(text)) if traits.prefix else self._whole
        super().__init__(traits, None if json.loads(text).get("truncation") else _find_special_ids(self._whole))

    def encode(self, strings: Sequence[str], special: bool) -> tuple[Ids, Index]:
        return _encode_batch(self._whole, strings, special)

    def encode_pieces(self, strings: Sequence[str]) -> tuple[Ids, Index]:
        return _encode_batch(self._pieces, strings, False)


def _encode_batch(tokenizer: Any, strings: Sequence[str], special: bool) -> tuple[Ids, Index]:
    try:
        encodings = tokenizer.encode_batch_fast(list(strings), add_special_tokens=special)
    except Exception:  # noqa: BLE001 - for example an unknown word without a token for unknown words
        return flat_ids(_call_each(lambda text: tokenizer.encode(text, add_special_tokens=special).ids, strings))
    return flat_ids(encoding.ids for encoding in encodings)


def _find_special_ids(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """Return the special ids that a tokenizer adds before and after each text; None if it does not do just that."""
    special_ids = tokenizer.encode("").ids
    splits = set(range(len(special_ids) + 1))
    for probe in ("a", "b c", "The quick, brown 12"):
        with suppress(Exception):  # the tokenizer may not know these words
            inside, full = tokenizer.encode(probe, add_special_tokens=False).ids, tokenizer.encode(probe).ids
            splits = {split for split in splits if special_ids[:split] + inside + special_ids[split:] == full}
    empty = tokenizer.encode("", add_special_tokens=False).ids
    if empty or (len(splits) != 1 and special_ids):
        return None
    split = splits.pop()
    return special_ids[:split], special_ids[split:]


def _without_prefix(text: str) -> str:
    spec = json.loads(text)
    splits = spec["pre_tokenizer"]
    for split in [splits, *splits.get("pretokenizers", [])]:
        if "add_prefix_space" in split:
            split["add_prefix_space"] = False
    return json.dumps(spec, ensure_ascii=False)


# ---- tiktoken --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiktoken(Spec):
    """An encoding of tiktoken. Names of special tokens inside a text are encoded as plain text."""

    encoding: Any = field(repr=False, compare=False)
    digest: str

    @staticmethod
    def of(encoding: Any) -> Tiktoken:
        ranks = sorted(encoding._mergeable_ranks.items(), key=lambda pair: pair[1])
        return Tiktoken(encoding, _digest("tiktoken", encoding._pat_str, repr(ranks), repr(encoding._special_tokens)))

    def make(self) -> Encoder:
        return _TiktokenEncoder(self.encoding)

    def token_to_id(self, token: str) -> int | None:
        special: dict[str, int] = self.encoding._special_tokens
        ranks: dict[bytes, int] = self.encoding._mergeable_ranks
        return special.get(token, ranks.get(token.encode()))


class _TiktokenEncoder(Encoder):
    def __init__(self, encoding: Any) -> None:
        super().__init__(traits_of_pattern(encoding._pat_str))
        self._encoding = encoding

    def encode(self, strings: Sequence[str], special: bool) -> tuple[Ids, Index]:
        return flat_ids([self._encoding.encode_ordinary(text) for text in strings])


# ---- any function ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function(Spec):
    """A user's function, or a callable class that is instantiated per worker and used by one thread at a time."""

    fn: Callable[..., Any]
    batched: bool
    _instances: Instances = field(default_factory=Instances, repr=False, compare=False)

    @property
    def digest(self) -> str:  # type: ignore[override]
        """A string that is equal for functions with equal code and state, as far as cedar can determine both."""
        return _digest("function", digest_of(self.fn), str(self.batched))

    def make(self) -> Encoder:
        return _FunctionEncoder(self)

    def encoder(self) -> Encoder:
        """Return a new encoder instead of a shared one, since functions with equal digests may differ in state."""
        return self.make()

    def token_to_id(self, token: str) -> int | None:
        return None

    def _make(self) -> Any:
        return constructed(self.fn, fn_name(self.fn), None)

    @contextmanager
    def borrow_function(self) -> Iterator[Callable[..., Any]]:
        """Yield the function, or an instance of the class that no other thread uses at the same time."""
        if not makes_instances(self.fn):
            yield self.fn
            return
        with self._instances.borrow(0, self._make) as instance:
            yield instance


class _FunctionEncoder(Encoder):
    def __init__(self, spec: Function) -> None:
        super().__init__(TokenizerTraits(None, "cedar cannot tell how a function splits text"))
        self._spec = spec

    def encode(self, strings: Sequence[str], special: bool) -> tuple[Ids, Index]:
        with self._spec.borrow_function() as fn:
            if not self._spec.batched:
                return flat_ids(_call_each(fn, strings))
            try:
                id_lists = list(fn(list(strings)))
            except raised():  # call it string by string to find the strings that fail
                return flat_ids(_call_each(lambda text: _single_result(fn([text])), strings))
        if len(id_lists) != len(strings):
            why = f"the tokenizer returned {len(id_lists)} lists for {len(strings)} strings"
            raise UnfitIds(dict.fromkeys(range(len(strings)), why))
        return flat_ids(id_lists)


def _call_each(fn: Callable[[str], Any], strings: Sequence[str]) -> list[Any]:
    id_lists, failed = [], {}
    for number, text in enumerate(strings):
        try:
            id_lists.append(fn(text))
        except raised() as error:  # a user's function may raise anything
            failed[number] = f"the tokenizer raised {type(error).__name__}: {error}"
    if failed:
        raise UnfitIds(failed)
    return id_lists


def _single_result(lists: Iterable[Any]) -> Any:
    (ids,) = lists
    return ids


def tokenizers_library() -> Any:
    """Import the library ``tokenizers``.

    Raises:
        PipelineError: the library is not installed.
    """
    try:
        import tokenizers as library
    except ImportError as error:
        raise invalid_call(
            "tokenize: a tokenizer.json needs the library tokenizers", fix="pip install 'cedar-data[text]'"
        ) from error
    return library


def _digest(*parts: str) -> str:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little") + raw)
    return state.hexdigest()
