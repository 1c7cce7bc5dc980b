"""Change the weights of mixtures during an epoch, and save and load them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site
from cedar.core.stream import Piece, Position
from cedar.engine.binding import Binding
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.epoch import Job, Mixed, mixed_of
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.engine.streams.deal import EVERYTHING, first_untaken, remaining
from cedar.engine.streams.lane_states import END, LaneState
from cedar.engine.streams.lanes import Lane, Past
from cedar.operators.mix import Mix, MixStream, Weight

_INLINE = Runner("inline", 1)


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
        opened[str(data)] = _redrawn_entry(epochs, number, list(weights), data, entry)
    epochs.parts.change_job(weights=job.weights | {number: list(weights)})
    epochs.used = True
    epochs.position = replace(position, open=opened, live=None, begun={}, placed=True, resumed=True)


def _redrawn_entry(
    epochs: Epochs, number: str, weights: list[Weight], data: int, entry: dict[str, Any]
) -> dict[str, Any]:
    """Return the state entry of a data epoch, changed so that the rest of it is drawn with these weights."""
    job, position = epochs.job, epochs.position
    before = list(job.weights.get(number) or mixtures(job.binding)[number].weights)
    change = _Change(job, data, number, before, weights)
    if (left := entry.get("before")) is not None:
        left = left | {"entry": _redrawn_entry(epochs, number, weights, left["epoch"], left["entry"])}
        entry = entry | {"before": left}
    if entry["lanes"] is not None:
        steps = position.step - position.begun["step"] if data == position.data else None
        lanes = [change.lane(LaneState(*lane), entry.get("past") or [], steps) for lane in entry["lanes"]]
        return entry | {"lanes": [list(lane) for lane in chain(*lanes)]}
    deal, alone = entry["deal"], job.rank.world == 1 or job.split_batches
    taken = 0 if deal is None else deal[0][0] + deal[1]
    if job.streams(_INLINE, data, [], dry=True)[1].count is None:
        return change.uncounted(entry, taken, 1 if alone else job.rank.world)
    if epochs.parts.drifts and not alone:
        raise PipelineError(
            "update_mix(): the position of the other ranks cannot be derived from this rank's steps",
            fix='use batch(last="drop") or last=None with steps=',
        )
    left = change.left(entry, [taken] * (1 if alone else job.rank.world))
    since = position.earlier_steps + position.step
    return {"history": [], "deal": None, "lanes": None, "left": left, "since": since}


@dataclass(frozen=True)
class _Change:
    """Changes the weights of mixture ``number`` in data epoch ``data``."""

    job: Job
    data: int
    number: str
    before: list[Weight]
    weights: list[Weight]

    @property
    def returns(self) -> bool:
        """Whether an input comes back, of which rows may remain where the other inputs are exhausted."""
        return any(new and not old for new, old in zip(self.weights, self.before, strict=True))

    def lane(self, lane: LaneState, past: Past, steps: int | None) -> list[LaneState]:
        """Return the lanes that remain of a lane; ``steps``: how many this rank took, None for an earlier epoch."""
        if lane.position == END or lane.cut or (lane.paused and not (self.returns and steps is not None)):
            return [lane]
        if lane.turns > 1 and not lane.paused and (steps is None or lane.taken < steps):
            _refuse_turns()  # this rank read other units first, so other ranks may have taken more
        end, whole = first_untaken(lane.history, lane.taken, lane.turns)
        if lane.paused and lane.turns > 1:
            end = EVERYTHING  # only all of its ranks know how many units it had
        if not self.returns:
            return [lane._replace(drawn=self.drawn(lane.drawn, end, self.weights))]
        rest = self.rest(lane.lane(past), [], (), lane.position, end)
        if rest is None:
            return [lane]
        earlier = [] if whole else [lane._replace(drawn=self.drawn(lane.drawn, end, [0.0] * len(self.before)))]
        fresh = lane._replace(history=(), position=None, keeps=None, drawn={self.number: [[0, self.weights, rest]]})
        return [*earlier, fresh]

    def uncounted(self, entry: dict[str, Any], taken: int, turns: int) -> dict[str, Any]:
        """Return the entry of an epoch without lanes whose counts are unknown."""
        end, whole = first_untaken(entry["history"], taken, turns)
        drawn = entry.get("drawn", {})
        if not self.returns:
            return entry | {"drawn": self.drawn(drawn, end, self.weights)}
        if not whole:
            _refuse_turns()
        rest = self.rest(None, entry["history"], mixed_of(entry), entry["deal"], end)
        if rest is None:
            return entry
        return entry | {"history": [], "deal": None, "drawn": drawn | {self.number: [[0, self.weights, rest]]}}

    def left(self, entry: dict[str, Any], taken: list[int]) -> dict[str, Any]:
        """Return what remains of the inputs, if counts are known, after rank ``r`` has received ``taken[r]`` units."""
        job, before = self.job, entry["history"]
        compiler, share = job.compiled(_INLINE, self.data, before, None, dry=True, mixed=mixed_of(entry))
        history = [*before, [share.world, share.chunk, taken]]
        left = remaining(compiler.assigned.count, history, share.last, compiler.assigned.rows_of)
        return compiler.remaining_of_mixtures(left)

    def drawn(self, drawn: dict[str, Any], end: int, weights: list[Weight]) -> dict[str, Any]:
        """Return ``drawn`` with a new entry: the weights apply after ``end`` delivered units."""
        compiler, _ = self.job.compiled(_INLINE, self.data, [], dry=True)
        below, _, ((_, first),) = compiler.mixture_below([(0, end)])
        if below != self.number:
            raise PipelineError("the weights of a mixture cannot change below another mixture")
        turns = drawn.get(self.number, [[0, self.before]])
        known = [each for each in turns if each[0] < first]
        new = [int(first), weights]
        return drawn | {self.number: [*known, new] if known else [[*new, *turns[0][2:]]]}

    def rest(
        self, lane: Lane | None, history: list[Any], mixed: Mixed, position: Position | None, end: int
    ) -> list[Any] | None:
        """Return the position in each input after ``end`` delivered units, or at the end of the mixture if that is
        earlier; None if nothing remains. See ``MixStream``.
        """
        nothing: list[Weight] = [0.0] * len(self.before)
        if lane is not None:
            lane = lane._replace(drawn=self.drawn(lane.drawn, end, nothing))
        else:
            left, since, drawn = mixed or ({}, 0, {})
            mixed = (left, since, self.drawn(drawn, end, nothing))
        job = replace(self.job, metrics=Metrics())
        compiler, share = job.compiled(_INLINE, self.data, history, lane, dry=True, mixed=mixed)
        top, assigned = compiler.top(share)
        _, stream, _ = compiler.mixture_below([(0, 0)])
        flow = top.open(position or [assigned.start(), 0])
        try:
            while isinstance(flow.pull(True), Piece):
                pass
        finally:
            flow.close()
        return cast("MixStream", getattr(stream, "source", stream)).rest


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
