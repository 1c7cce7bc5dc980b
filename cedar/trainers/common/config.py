"""The configuration of a trainer: frozen dataclasses, read from a TOML file, with errors that name file and key."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cedar.core.errors import CedarError


def cosine(step: int, *, peak: float, steps: int, warmup: int = 0, least: float = 0.0) -> float:
    """Linear to ``peak`` over ``warmup`` steps, then half a cosine down to ``least`` at ``steps``, and flat from there.

    The curve is that of SGDR (arXiv 1608.03983), without its restarts.

    Example:
        >>> [round(cosine(step, peak=1.0, steps=6, warmup=2, least=0.1), 3) for step in range(8)]
        [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= steps:
        return least
    done = (step - warmup) / max(1, steps - warmup)
    return least + (peak - least) * 0.5 * (1.0 + math.cos(math.pi * done))


def constant(step: int, *, peak: float, warmup: int = 0) -> float:
    """Linear to ``peak`` over ``warmup`` steps, and flat from there.

    Example:
        >>> [constant(step, peak=1.0, warmup=2) for step in range(4)]
        [0.5, 1.0, 1.0, 1.0]
    """
    return peak * min(1.0, (step + 1) / warmup) if warmup else peak


@dataclass(frozen=True)
class TransformerOptions:
    """A GPT-style model."""

    layers: int = 2  # blocks
    width: int = 64  # of a token inside the model
    heads: int = 4  # of attention
    dropout: float = 0.0  # share of values that a block's outputs lose while training

    def __post_init__(self) -> None:
        positive(self, "layers", "width", "heads")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be cut into {self.heads} heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


@dataclass(frozen=True)
class AdamWOptions:
    """AdamW.

    Args:
        rate: the highest learning rate.
        least: the last learning rate of the cosine.
        warmup: steps of linear growth.
        schedule: ``cosine`` or ``constant``.
        betas: of the two moments.
        eps: added to the root of the second moment.
        decay: of weights with two or more dimensions.
        clip: the largest norm of all gradients together; 0 for no limit.
    """

    rate: float = 1e-3
    least: float = 1e-4
    warmup: int = 0
    schedule: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        not_negative(self, "rate", "least", "warmup", "eps", "decay", "clip")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: give two numbers of 0 or more, less than 1")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step of so many."""
        if self.schedule == "constant":
            return constant(step, peak=self.rate, warmup=self.warmup)
        return cosine(step, peak=self.rate, steps=steps, warmup=self.warmup, least=self.least)


@dataclass(frozen=True)
class RunOptions:
    """One run.

    Args:
        folder: checkpoints and metrics go here.
        steps: how many.
        seed: of weights, data and random numbers.
        dtype: of the computation; master weights are float32 at least.
        device: ``cpu``, ``cuda`` or ``auto``.
        save_every: steps between checkpoints; 0: only at the end.
        keep: checkpoints to keep.
        threads: of torch in each process; 0: the cores of the machine over its ranks. Runs are bitwise alike only with
            as many threads.
        serve: host and port, such as ``127.0.0.1:0``, for ``loader(serve=)``; each rank says its address. Of dlrm and
            moe.
    """

    folder: str
    steps: int = 0
    seed: int = 0
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    device: str = "auto"
    save_every: int = 0
    keep: int = 2
    threads: int = 0
    serve: str = ""

    def __post_init__(self) -> None:
        positive(self, "keep")
        not_negative(self, "steps", "save_every", "threads")


@dataclass(frozen=True)
class TextOptions:
    """Text, as bytes."""

    paths: str | tuple[str, ...]  # text files: a path, a glob or a URL, or several
    length: int = 128  # tokens that a row trains on
    batch: int = 32  # rows of a step, over all ranks or pipelines

    def __post_init__(self) -> None:
        positive(self, "length", "batch")
        if not all((self.paths,) if isinstance(self.paths, str) else self.paths or ("",)):
            raise ValueError(f"paths is {self.paths!r}: give a path, a glob or a URL, or a list of them")


def positive(options: object, *names: str) -> None:
    """Refuse numbers below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give 1 or more")


def not_negative(options: object, *names: str) -> None:
    """Refuse numbers, or tuples of numbers, below 0 or not finite."""
    for name in names:
        value = getattr(options, name)
        if not all(0 <= each < math.inf for each in (value if isinstance(value, (tuple, list)) else (value,))):
            raise ValueError(f"{name} is {value}: give 0 or more")


T = TypeVar("T")


def load(path: str, cls: type[T], changes: Sequence[str] = ()) -> T:
    """A configuration from a TOML file; tables of the file are fields that are dataclasses themselves.

    Args:
        path: of the file.
        cls: a dataclass whose fields have types: numbers, str, bool, tuples of these, unions with None, dataclasses.
        changes: ``"model.layers=4"``: values of TOML that take the place of those in the file.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise CedarError(
            f"the configuration {path} cannot be read: {error.strerror}", fix="give a TOML file"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise CedarError(f"{path} is no TOML: {error}", fix="see https://toml.io for how it is written") from error
    for change in changes:
        _put(values, change)
    return parse(values, cls, path)


def parse(values: Mapping[str, Any], cls: type[T], where: str) -> T:
    """A configuration from a mapping.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Model:
        ...     layers: int = 2
        >>> parse({"layers": 4}, Model, "model.toml")
        Model(layers=4)
    """
    return typing.cast("T", _build(values, cls, where, ""))


_FIELD = re.compile(r"((?: *#.*\n)*) +(\w+): [^\n]*?(?:  # (.*))?\n")
_ARGUMENT = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)


def settings(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(name, default, what it means) of all settings: as the source says it, beside fields or in docstrings.

    Example:
        >>> next(settings(TextOptions, "data."))
        ('data.paths', '', 'text files: a path, a glob or a URL, or several')
    """
    told: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        told |= {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(base.__doc__ or "")}
        for above, name, beside in _FIELD.findall(inspect.getsource(base)):
            if text := beside or " ".join(line.strip(" #") for line in above.splitlines()):
                told[name] = text
    hints: Any = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        every: tuple[Any, ...] = (*typing.get_args(hints[field.name]), hints[field.name])
        kinds: list[Any] = [kind for kind in every if dataclasses.is_dataclass(kind)]
        if kinds and field.name not in told:  # a table of the file
            yield from settings(kinds[0], f"{prefix}{field.name}.")
        else:
            default = "" if field.default is dataclasses.MISSING else json.dumps(field.default)
            yield f"{prefix}{field.name}", default, told.get(field.name, "")


def _put(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise CedarError(f"{change!r} changes nothing", fix="write KEY=VALUE, as in model.layers=4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise CedarError(f"{change!r}: {table!r} is no table", fix="see the configuration file")
    values[last] = value


def _build(values: Any, cls: type, where: str, prefix: str) -> Any:
    if not isinstance(values, Mapping):
        raise CedarError(f"{where}: {prefix[:-1]!r} is {values!r}, not a table", fix=f"write it as [{prefix[:-1]}]")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(fields)}"
            raise CedarError(f"{where}: there is no setting {prefix + key!r}", fix=fix)
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise CedarError(f"{where}: the setting {prefix + name!r} is missing", fix=f"give a value for {name}")
    made = {key: _value(value, hints[key], where, prefix + key) for key, value in values.items()}
    try:
        return cls(**made)
    except ValueError as error:
        raise CedarError(
            f"{where}: {prefix[:-1] + ': ' if prefix else ''}{error}", fix="change that setting"
        ) from error


def _value(value: Any, hint: Any, where: str, key: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(value, hint, where, key + ".")
    if origin in (typing.Union, types.UnionType):
        listed = isinstance(value, (list, tuple))
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        kinds = [kind for kind in kinds if (typing.get_origin(kind) is tuple) == listed] or kinds
        for kind in kinds[:-1]:
            with suppress(CedarError):
                return _value(value, kind, where, key)
        return _value(value, kinds[-1], where, key)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise CedarError(f"{where}: {key!r} is {value!r}, not a list", fix="write it as [...]")
        return tuple(_value(item, typing.get_args(hint)[0], where, f"{key}[{at}]") for at, item in enumerate(value))
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise CedarError(
                f"{where}: {key!r} is {value!r}", fix=f"give one of {', '.join(map(repr, typing.get_args(hint)))}"
            )
        return value
    if hint is float and type(value) is int:
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is not bool and isinstance(value, bool))):
        raise CedarError(
            f"{where}: {key!r} is {value!r}, not {hint.__name__}", fix=f"give a value of type {hint.__name__}"
        )
    return value
