"""Fits preprocessors in one pass over the rows, and saves the results as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cedar.core.block import equal_frames, frame_of
from cedar.core.errors import PipelineError, SourceError, invalid_call, missing_column, user_site
from cedar.operators.base import Operator
from cedar.pipeline.core import Pipeline
from cedar.pipeline.surveying import in_order, require_steady, survey
from cedar.plan.graph import Node
from cedar.preprocessing.steps import MinMaxScaler, Quantiles, StandardScaler, Step, Vocabulary
from cedar.store.files import write_whole
from cedar.store.keep import once, user_place
from cedar.store.place import name_of
from cedar.tasks.fingerprints import key_of

_FORMAT = "fitted 1"
_KINDS: tuple[type[Step], ...] = (StandardScaler, MinMaxScaler, Quantiles, Vocabulary)


@dataclass(frozen=True)
class Fitted:
    """Fitted preprocessors. ``p.apply(fitted)`` applies them; ``fitted["x"]`` returns the result for a column.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"x": 1.0, "c": "a"}, {"x": 3.0, "c": "b"}, {"x": 2.0, "c": "b"}])
        >>> fitted = cedar.fit(rows, cedar.preprocessing.StandardScaler("x"), cedar.preprocessing.Vocabulary("c"))
        >>> list(rows.take(1).apply(fitted).select("c")), fitted["x"]["mean"], fitted["c"].size
        ([{'c': 2}], 2.0, 3)
    """

    steps: tuple[tuple[Step, dict[str, dict[str, Any]]], ...]  # pairs of a preprocessor and its results by column

    def operators(self) -> list[Operator]:
        """Return the operators that ``p.apply(fitted)`` adds to a pipeline."""
        return [step.operator(column, each) for step, learned in self.steps for column, each in learned.items()]

    @property
    def columns(self) -> list[str]:
        """Return the columns that were fitted."""
        return [name for _, learned in self.steps for name in learned]

    def __getitem__(self, column: str) -> Any:
        for step, learned in self.steps:
            if column in learned:
                return step.shown(column, learned[column])
        raise missing_column(column, self.columns, "fitted")

    def __repr__(self) -> str:
        found = [f"{type(step).__name__} of {name}" for step, learned in self.steps for name in learned]
        return f"<Fitted: {', '.join(found)}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the preprocessors and results to a JSON file, atomically.

        Raises:
            SourceError: the file cannot be written.
        """
        steps: list[dict[str, Any]] = []
        for step, learned in self.steps:
            fields = dataclasses.fields(step)  # type: ignore[arg-type]
            options = {each.name: getattr(step, each.name) for each in fields if each.compare}
            steps.append({"is": type(step).__name__, "with": options, "learned": learned})
        try:
            write_whole(os.fspath(path), json.dumps({"cedar": _FORMAT, "steps": steps}).encode())
        except OSError as error:
            raise SourceError(f"cannot write {os.fspath(path)}: {error}", fix="check space and permissions") from error

    @staticmethod
    def load(path: str | os.PathLike[str], *, steps: Iterable[type[Step]] = ()) -> Fitted:
        """Read a file that ``save`` wrote.

        Args:
            path: path of the file.
            steps: classes of user-defined preprocessors that the file contains.

        Raises:
            SourceError: the file does not exist, or is not a saved ``Fitted``.
        """
        kinds = {kind.__name__: kind for kind in (*_KINDS, *steps)}
        try:
            with open(path, "rb") as file:
                saved = json.loads(file.read())
            if saved["cedar"] != _FORMAT:
                raise ValueError(f"its format is {saved['cedar']!r}")
            return Fitted(tuple((kinds[each["is"]](**each["with"]), each["learned"]) for each in saved["steps"]))
        except (OSError, ValueError, KeyError, TypeError, PipelineError) as error:
            raise SourceError(
                f"{os.fspath(path)} is not a file of fitted preprocessors: {error!r}",
                fix="give a file that fitted.save() wrote, and steps= with the classes of your own preprocessors",
            ) from error


def fit(pipeline: Pipeline, *steps: Step) -> Fitted:
    """Fit preprocessors in one pass over the columns that they name.

    The pass reads all rows in the order of the sources, without shuffling, so the result is the same on every rank and
    for any number of ranks. cedar stores it in the user's cache folder for other ranks and later runs, unless it cannot
    identify a function or a source, or a preprocessor is user-defined. Fit on training rows: ``p.split(...)["train"]``.

    Args:
        pipeline: a pipeline of rows, not batches, that are the same in every epoch.
        *steps: preprocessors from ``cedar.preprocessing``; no two may name the same column.

    Returns:
        The fitted preprocessors, for ``p.apply(fitted)`` and ``fitted.save(path)``.

    Raises:
        PipelineError: a column does not exist or has another type, or two steps name the same column.

    Examples:
        >>> import cedar
        >>> rows = cedar.from_items([{"age": 20}, {"age": 40}])
        >>> [row["age"] for row in rows.apply(cedar.fit(rows, cedar.preprocessing.StandardScaler("age")))]
        [-1.0, 1.0]
    """
    if not steps or not all(isinstance(step, Step) for step in steps):
        fix = 'give some, such as cedar.preprocessing.StandardScaler("x")'
        raise invalid_call("fit takes a pipeline and preprocessors", fix=fix)
    columns = [column for step in steps for column in step.columns]
    known = pipeline.schema
    for name in columns:
        if "?" not in known and name not in known:
            raise missing_column(name, list(known), "fit", user_site())
        if columns.count(name) > 1:
            raise invalid_call(f"fit: two steps for column {name!r}", fix="fit the second after the first")
    require_steady(pipeline, columns, "fit")
    node = in_order(pipeline.given)
    key = key_of(node, None, "fit", *steps) if set(map(type, steps)) <= set(_KINDS) else None
    place = None if key is None else user_place()
    learned = once(place, name_of("fit", key), lambda: {"steps": _learned(node, columns, steps)})
    return Fitted(tuple(zip(steps, learned["steps"], strict=True)))


def _learned(node: Node, columns: list[str], steps: tuple[Step, ...]) -> list[dict[str, Any]]:
    """Return the results of each step by column."""
    learners = [(step, {column: step.learner(column) for column in step.columns}) for step in steps]
    try:
        for part in equal_frames(map(frame_of, survey(node, columns, "fit"))):
            for _, each in learners:
                for column, learner in each.items():
                    learner.add(part[column])
        return [{name: each.learned() for name, each in known.items()} for _, known in learners]
    finally:
        for learner in (learner for _, each in learners for learner in each.values()):
            learner.close()
