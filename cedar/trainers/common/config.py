"""The configuration of a trainer: frozen dataclasses, read from a TOML file, with errors that name file and key."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from cedar.errors import CedarError

T = TypeVar("T")


def load(path: str, cls: type[T], changes: Sequence[str] = ()) -> T:
    """A configuration from a TOML file; tables of the file are fields that are dataclasses themselves.

    Args:
        path: of the file.
        cls: a dataclass whose fields have types: numbers, str, bool, tuples of these, unions with None, dataclasses.
        changes: ``"model.layers=4"``: values of TOML that take the place of those in the file.

    Raises:
        CedarError: there is no such file, it is no TOML, a key is unknown, missing or of another type.
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

    Raises:
        CedarError: a key is unknown, missing or of another type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Model:
        ...     layers: int = 2
        >>> parse({"layers": 4}, Model, "model.toml")
        Model(layers=4)
    """
    return typing.cast("T", _build(values, cls, where, ""))


def _put(values: dict[str, Any], change: str) -> None:
    key, found, text = change.partition("=")
    if not found:
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
