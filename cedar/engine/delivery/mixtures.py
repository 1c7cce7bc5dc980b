"""Change the weights of mixtures during an epoch, and save and load them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site
from cedar.engine.binding import Binding
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.runner import Runner
from cedar.engine.streams.deal import first_untaken
from cedar.engine.streams.lane_states import LaneState
from cedar.operators.mix import Mix, Weight


def mixtures(binding: Binding) -> dict[str, Mix]:
    """Return the mixtures of a pipeline, by number."""
    return {number: cast("Mix", node.operator) for number, node in binding.mixtures.items()}


def update_mix(
    epochs: Epochs, weights: Mapping[str, float] | Sequence[float] | None, remove: Iterable[str], site: Site | None
) -> None:
    """See ``Loader.update_mix``."""
    epochs.parts.check_exact("update_mix()", site)
    given = dict(weights) if isinstance(weights, Mapping) else weights
    remove = list(map(str, remove))
    names = [*map(str, given if isinstance(given, dict) else ()), *remove]
    mixes = mixtures(epochs.job.binding)
    fit = [number for number, mix in mixes.items() if set(names) <= set(mix.inputs_named)]
    if len(fit) != 1:
        known = "; ".join(mix.label() for mix in mixes.values()) or "none"
        raise PipelineError(
            f"update_mix(): {'no mixture has' if not fit else 'several mixtures have'} these inputs: {names}",
            site=site,
            done="nothing was changed",
            fix=f"the mixtures are: {known}. Name inputs: mix({{'web': (web, 0.7), 'code': (code, 0.3)}})",
        )
    number, mix = fit[0], mixes[fit[0]]
    before = tuple(epochs.job.weights.get(number) or mix.weights)
    changed = mix.changed(before if given is None else given, before)
    changed = mix.changed(dict.fromkeys(remove, 0.0), changed)
    try:
        _draw_by(epochs, number, changed)
    except CedarError as error:
        error.site = error.site or site
        error.done = "nothing was changed"
        raise


def _draw_by(epochs: Epochs, number: str, weights: Sequence[Weight]) -> None:
    """Draw the rest of a mixture with these weights."""
    if any(map(callable, weights)):
        raise PipelineError(
            "update_mix(): the mixture has weights that are functions", fix="give a number for each of its inputs"
        )
    position, job = epochs.position, epochs.job
    opened, data = position.opened(), position.data
    if (entry := opened.get(str(data))) is not None:  # otherwise, no row was drawn, and all are by these weights
        opened[str(data)] = _redrawn_entry(epochs, number, list(weights), entry)
    epochs.parts.change_job(weights=job.weights | {number: list(weights)})
    epochs.used = True
    epochs.position = replace(position, open=opened, live=None, begun={}, placed=True, resumed=True)


def _redrawn_entry(epochs: Epochs, number: str, weights: list[Weight], entry: dict[str, Any]) -> dict[str, Any]:
    """Return the state entry of a data epoch, changed so that the rest of it is drawn with these weights."""
    job, position = epochs.job, epochs.position
    alone = job.rank.world == 1 or job.split_batches
    before = job.weights.get(number) or list(mixtures(job.binding)[number].weights)
    steps = position.step - position.begun["step"]

    def draw(drawn: dict[str, Any], history: Sequence[Any], taken: int, turns: int) -> dict[str, Any]:
        if turns > 1 and taken < steps:  # this rank read other units first, so other ranks may have taken more
            _refuse_turns()
        return job.drawn_from(position.data, number, drawn, first_untaken(history, taken, turns), before, weights)

    if entry["lanes"] is not None:
        lanes = [LaneState(*each) for each in entry["lanes"]]
        drawn = [
            lane if lane.ended else lane._replace(drawn=draw(lane.drawn, lane.history, lane.taken, lane.turns))
            for lane in lanes
        ]
        return entry | {"lanes": [list(lane) for lane in drawn]}
    deal = entry["deal"]
    taken = 0 if deal is None else deal[0][0] + deal[1]
    if job.streams(Runner("inline", 1), position.data, [], dry=True)[1].count is None:
        turns = 1 if alone else job.rank.world
        return entry | {"drawn": draw(entry.get("drawn", {}), entry["history"], taken, turns)}
    if epochs.parts.drifts and not alone:
        raise PipelineError(
            "update_mix(): the position of the other ranks cannot be derived from this rank's steps",
            fix='use batch(last="drop") or last=None with steps=',
        )
    left = job.remaining_of_mixtures(position.data, entry, [taken] * (1 if alone else job.rank.world))
    since = position.earlier_steps + position.step
    return {"history": [], "deal": None, "lanes": None, "left": left, "since": since}


def _refuse_turns() -> None:
    raise PipelineError(
        "update_mix(): ranks take turns at the batches of a part of the mixture, and are at different positions in it",
        fix="change weights between two epochs; see the RANKS line of loader.explain()",
    )


def saved_weights(epochs: Epochs) -> dict[str, Any]:
    """Return a state's fields for mixtures: the weights as written, and the weights set during the run."""
    job = epochs.job
    weights = {number: [mix.written(), job.weights.get(number)] for number, mix in mixtures(job.binding).items()}
    earlier = {"earlier": epochs.position.earlier_steps} if epochs.parts.scheduled else {}
    return ({"mix": weights} if weights else {}) | earlier


def apply_saved_weights(epochs: Epochs, state: dict[str, Any], site: Site | None) -> None:
    """Apply the weights of a loaded state, unless the pipeline's own have changed since; see ``Loader.update_mix``."""
    mixes = mixtures(epochs.job.binding)
    saved = {number: tuple(each) for number, each in state.get("mix", {}).items() if number in mixes}
    others = {
        number: weights or written
        for number, (written, weights) in saved.items()
        if not _equal_weights(written, mixes[number].written())
    }
    changed = {number: weights for number, (_, weights) in saved.items() if weights and number not in others}
    if saved:
        epochs.parts.change_job(weights=changed | others)
    for number, before in others.items():
        try:
            if None in before:
                raise PipelineError("its weights were functions then, which a state cannot store")
            _draw_by(epochs, number, mixes[number].weights)
        except CedarError as error:
            raise ResumeError(
                f"{mixes[number].label()} has other weights than when the state was saved: {error.what}",
                site=site,
                done="nothing was loaded",
                fix=error.fix or "load it with the weights that were used when it was saved",
            ) from error


def _equal_weights(written: Sequence[float | None], mine: Sequence[float | None]) -> bool:
    """Whether a state's weights equal the pipeline's. None means a schedule, whose code ``Identity`` compares."""
    return len(written) == len(mine) and all(a == b for a, b in zip(written, mine, strict=True))
