"""Trainer configuration: reads frozen dataclasses from a TOML file. Errors name the file and the key."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeVar

from cedar.core.errors import CedarError


def cosine(step: int, *, peak: float, steps: int, warmup: int = 0, least: float = 0.0) -> float:
    """Return the rate at ``step``: linear warmup to ``peak``, half a cosine to ``least`` at ``steps``, then constant.

    This is the schedule of SGDR (arXiv 1608.03983) without restarts.

    Examples:
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
    """Return the learning rate at a step: linear warmup to ``peak`` over ``warmup`` steps, then constant.

    Examples:
        >>> [constant(step, peak=1.0, warmup=2) for step in range(4)]
        [0.5, 1.0, 1.0, 1.0]
    """
    return peak * min(1.0, (step + 1) / warmup) if warmup else peak


@dataclass(frozen=True)
class TransformerOptions:
    """Options of a GPT-style model."""

    layers: int = 2  # number of transformer blocks
    width: int = 64  # size of a token's hidden vector
    heads: int = 4  # attention heads
    dropout: float = 0.0  # probability of dropping a value of a block's output in training

    def __post_init__(self) -> None:
        positive(self, "layers", "width", "heads")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


@dataclass(frozen=True)
class AdamWOptions:
    """Options of AdamW.

    Args:
        rate: maximum learning rate.
        least: learning rate at the end of the cosine schedule.
        warmup: number of steps over which the learning rate grows linearly.
        schedule: ``cosine`` or ``constant``.
        betas: decay rates of the first and second moment.
        eps: added to the square root of the second moment.
        decay: weight decay of parameters with two or more dimensions.
        clip: maximum global norm of the gradients, to which they are clipped; 0 for no clipping.
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
        check_choices(self)
        not_negative(self, "rate", "least", "warmup", "eps", "decay", "clip")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: give two numbers of 0 or more, less than 1")

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of ``step`` in a run of ``steps`` steps."""
        if self.schedule == "constant":
            return constant(step, peak=self.rate, warmup=self.warmup)
        return cosine(step, peak=self.rate, steps=steps, warmup=self.warmup, least=self.least)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Args:
        folder: folder for checkpoints and metrics.
        steps: number of training steps.
        seed: seed of weights, data order and random numbers.
        dtype: dtype of the computation; master weights have at least float32 precision.
        device: ``cpu``, ``cuda`` or ``auto``.
        save_every: steps between checkpoints; 0: save only at the end.
        keep: number of checkpoints to keep.
        threads: torch threads per process; 0 means the machine's cores divided by its ranks. Two runs are bitwise
            identical only if they use the same number.
        serve: host and port for ``loader(serve=)``, such as ``127.0.0.1:0``; each rank prints its address. Only the
            trainers dlrm and moe use this option.
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
        check_choices(self)
        positive(self, "keep")
        not_negative(self, "steps", "save_every", "threads")


@dataclass(frozen=True)
class TextOptions:
    """Options of text data. Tokens are bytes."""

    paths: str | tuple[str, ...]  # one or more paths, globs or URLs of text files
    length: int = 128  # training tokens per row
    batch: int = 32  # rows per step, in total over all ranks or pipelines

    def __post_init__(self) -> None:
        positive(self, "length", "batch")
        if not all((self.paths,) if isinstance(self.paths, str) else self.paths or ("",)):
            raise ValueError(f"paths is {self.paths!r}: give a path, a glob or a URL, or a list of them")


def positive(options: object, *names: str) -> None:
    """Raise ``ValueError`` if one of the named options is below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise ValueError(f"{name} is {getattr(options, name)}: give 1 or more")


def not_negative(options: object, *names: str) -> None:
    """Raise ``ValueError`` if one of the named options has a number that is negative or not finite."""
    for name in names:
        value = getattr(options, name)
        if not all(0 <= each < math.inf for each in (value if isinstance(value, (tuple, list)) else (value,))):
            raise ValueError(f"{name} is {value}: give a finite number of 0 or more")


def check_choices(options: object) -> None:
    """Raise ``ValueError`` if an option whose type is a ``Literal``, or a union with one, has another value."""
    for name, hint in typing.get_type_hints(type(options)).items():
        kinds, literals = _split_hint(hint)
        value = getattr(options, name)
        integer = int in kinds and isinstance(value, Integral) and not isinstance(value, bool)  # numpy's too
        if literals and type(value) not in kinds and not integer:
            check_choice(name, value, literals, [kind.__name__ for kind in kinds if isinstance(kind, type)])


def check_choice(name: str, value: object, choices: Collection[object], kinds: Sequence[str] = ()) -> None:
    """Raise ``ValueError`` if a value is not one of the choices. ``kinds``: other types that the message names."""
    if value not in choices:
        accepted = " or ".join([*kinds, f"one of {', '.join(map(str, choices))}"])
        raise ValueError(f"{name} is {value!r}: give {accepted}")


T = TypeVar("T")


def load(path: str, cls: type[T], changes: Sequence[str] = ()) -> T:
    """Read a configuration from a TOML file. Tables of the file become nested dataclasses.

    Args:
        path: path of the TOML file.
        cls: the dataclass to build.
        changes: overrides such as ``"model.layers=4"``, with TOML values.

    Raises:
        CedarError: the file cannot be read, or a setting is unknown, missing or invalid.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
        for change in changes:
            _put(values, change)
    except OSError as error:
        raise CedarError(
            f"the configuration {path} cannot be read: {error.strerror}", fix="give a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CedarError(f"{path} is not valid TOML: {error}", fix="see https://toml.io") from error
    return parse(values, cls, path)


def parse(values: Mapping[str, Any], cls: type[T], where: str) -> T:
    """Build a configuration from a mapping. ``where`` names its source in error messages.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Model:
        ...     layers: int = 2
        >>> parse({"layers": 4}, Model, "model.toml")
        Model(layers=4)
    """
    return typing.cast("T", _build(values, cls, where, ""))


def _put(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise CedarError(f"{change!r} is not a setting", fix="write KEY=VALUE, as in model.layers=4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise CedarError(f"{change!r}: {table!r} is not a table", fix="see the configuration file")
    values[last] = value


def _build(values: Mapping[str, Any], cls: Any, where: str, prefix: str) -> Any:
    hints, known = typing.get_type_hints(cls), [field.name for field in dataclasses.fields(cls) if field.init]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(known)}"
            raise CedarError(f"{where}: there is no setting {prefix + key!r}", fix=fix)
    for field in dataclasses.fields(cls):
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise CedarError(f"{where}: {prefix + field.name!r} is missing", fix=f"give a value for {field.name}")
    made = {key: _value(value, hints[key], where, prefix + key) for key, value in values.items()}
    try:
        return cls(**made)
    except ValueError as error:
        reported = f"{where}: {prefix[:-1] + ': ' if prefix else ''}{error}"
        raise CedarError(reported, fix="change that setting") from error


def _value(value: Any, hint: Any, where: str, key: str) -> Any:
    kinds, literals = _split_hint(hint)
    for kind in kinds:
        if isinstance(value, Mapping) and dataclasses.is_dataclass(kind):
            return _build(value, kind, where, key + ".")
        if isinstance(value, (list, tuple)) and typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(_value(each, item, where, f"{key}[{at}]") for at, each in enumerate(value))
    if type(value) in kinds or value in literals:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    reported = " or ".join(
        [kind.__name__ for kind in kinds if isinstance(kind, type)] + [repr(each) for each in literals]
    )
    raise CedarError(f"{where}: {key!r} is {value!r}, not {reported or 'a list'}", fix="change that setting")


def _split_hint(hint: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the types in a union, or the hint itself if it is not a union, and the values of its literals."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds: tuple[Any, ...] = typing.get_args(hint) if union else (hint,)
    literals = [each for kind in kinds if typing.get_origin(kind) is typing.Literal for each in typing.get_args(kind)]
    return kinds, literals
