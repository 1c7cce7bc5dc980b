"""Change the weights of mixtures during an epoch, and save and load them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site
from cedar.core.stream import Piece, Position
from cedar.engine.binding import Binding
from cedar.engine.compiler import min_run_rows
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.delivery.parts import Parts
from cedar.engine.epoch import Job, Mixed, mixed_of
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream
from cedar.engine.streams.deal import EVERYTHING, first_untaken, remaining
from cedar.engine.streams.derived import SharedStream, WindowStream
from cedar.engine.streams.lanes import END, Lane, LaneState, Past
from cedar.operators.mix import Mix, MixStream, Weight
from cedar.operators.take import whole
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps.step import leave_unread

_INLINE = Runner("inline", 1)
_BELOW = "the weights of a mixture cannot change below another mixture"


def mixtures(binding: Binding) -> dict[str, Mix]:
    """Return the mixtures of a pipeline, by number."""
    return {number: cast("Mix", node.operator) for number, node in binding.mixtures.items()}


@dataclass(frozen=True)
class MixChange:
    """A change of one mixture.

    Args:
        step: the loader's step, counted over all epochs, from which the change applies.
        weights: new weights by input name.
        inputs: the last nodes of the inputs to add, by name; their weights are in ``weights``.
        site: the user's line.
    """

    step: int
    weights: dict[str, Any]
    inputs: dict[str, Node]
    site: Site | None


def update_mix(
    epochs: Epochs, weights: Mapping[str, float] | Sequence[float] | None, add: Mapping[str, tuple[Any, float]] | None,
    remove: Iterable[str], at_step: int | None, site: Site | None,
) -> None:  # fmt: skip
    """See ``Loader.update_mix``."""
    epochs.parts.check_exact("update_mix()", site)
    try:
        given: Mapping[str, Any] = add or {}
        pairs = {str(name): pair if isinstance(pair, tuple | list) else () for name, pair in given.items()}
        inputs = {name: pipeline.given for name, (pipeline, _) in pairs.items()}  # a pipeline runs if unpacked
        changed = {name: weight for name, (_, weight) in pairs.items()}
    except (TypeError, ValueError, AttributeError) as error:
        fix = 'update_mix(add={"code": (pipeline, 0.5)})'
        raise PipelineError("update_mix(add=) takes pairs of a pipeline and a weight", site=site, fix=fix) from error
    step = epochs.total_steps if at_step is None else whole(at_step, "update_mix(at_step)")
    gone = dict.fromkeys(map(str, remove), 0.0)
    named: dict[str, Weight] = {}
    if isinstance(weights, Mapping):
        named = {str(name): weight for name, weight in weights.items()}
    planned = {name for each in epochs.changes for name in each.inputs}
    number, mix = _mixture(epochs, {*named, *gone} - planned, site)
    if weights is not None and not isinstance(weights, Mapping):
        named = dict(zip(mix.inputs_named, mix.changed(weights, mix.weights), strict=True))
    change = MixChange(step, named | changed | gone, inputs, site)
    if step < epochs.total_steps:
        raise PipelineError(f"update_mix(at_step={step}): the loader is at step {epochs.total_steps}", site=site)
    if taken := {*inputs} & {*mix.inputs_named, *planned}:
        raise PipelineError(f"update_mix(add=): the mixture has an input {min(taken)!r} already", site=site)
    if any(node.row_use.rows == "mixed" for each in inputs.values() for node in graph.walk(each)):
        raise PipelineError("update_mix(add=): the new input contains another mixture", site=site)
    if at_step is None:
        _apply(epochs, change)
        return
    before = dict(zip(mix.inputs_named, epochs.job.weights.get(number) or mix.weights, strict=True))
    for each in (*(each for each in epochs.changes if each.step <= step), change):
        before |= each.weights
    ones = (1.0,) * len(before)
    after = dict(zip(before, replace(mix, weights=ones, names=(*before,)).changed(before, ones), strict=True))
    if any(map(callable, after.values())):
        raise PipelineError("update_mix(at_step=): a weight is a function", site=site, fix="give numbers as weights")
    change = replace(change, weights={name: after[name] for name in change.weights})
    epochs.changes = sorted([*epochs.changes, change], key=lambda each: each.step)
    epochs.used = True


def apply_due(epochs: Epochs) -> None:
    """Apply the changes of mixtures that the loader's step has reached."""
    while epochs.changes and epochs.changes[0].step <= epochs.total_steps:
        _apply(epochs, epochs.changes[0])
        epochs.changes = epochs.changes[1:]


def _mixture(epochs: Epochs, names: Collection[str], site: Site | None) -> tuple[str, Mix]:
    """Return the number and the operator of the only mixture with these inputs."""
    mixes = mixtures(epochs.job.binding)
    fit = [number for number, mix in mixes.items() if set(names) <= set(mix.inputs_named)]
    if len(fit) != 1:
        known = "; ".join(mix.label() for mix in mixes.values()) or "none"
        raise PipelineError(
            f"update_mix(): {'no mixture has' if not fit else 'several mixtures have'} these inputs: {sorted(names)}",
            site=site,
            done="nothing was changed",
            fix=f"the mixtures are: {known}. Name inputs: mix({{'web': (web, 0.7), 'code': (code, 0.3)}})",
        )
    return fit[0], mixes[fit[0]]


def _apply(epochs: Epochs, change: MixChange) -> None:
    number, mix = _mixture(epochs, {*change.weights} - {*change.inputs}, change.site)
    before = tuple(epochs.job.weights.get(number) or mix.weights)
    try:
        more = tuple(change.weights[name] for name in change.inputs)
        mix = replace(mix, weights=(*mix.weights, *more), names=(*mix.inputs_named, *change.inputs))
        _draw_by(epochs, number, mix.changed(change.weights, (*before, *more)), change.inputs)
    except CedarError as error:
        error.site = error.site or change.site
        error.done = "nothing was changed"
        raise


def _draw_by(epochs: Epochs, number: str, weights: Sequence[Weight], inputs: Mapping[str, Node] | None = None) -> None:
    """Draw the rest of a mixture with these weights, and from additional inputs."""
    if any(map(callable, weights)):
        raise PipelineError(
            "update_mix(): the mixture has weights that are functions", fix="give a number for each of its inputs"
        )
    epochs.place()
    position, job = epochs.position, epochs.job
    opened, data = position.opened(), position.data
    parts = grown_parts(epochs, number, weights, inputs) if inputs else None
    if (entry := opened.get(str(data))) is not None:  # otherwise, no row was drawn, and all are by these weights
        if parts is not None:
            _check_adds(epochs, parts.job, entry)
        opened[str(data)] = _redrawn_entry(epochs, number, list(weights), data, entry)
    if parts is not None:
        epochs.replace_parts(parts, number)
    epochs.parts.change_job(weights=job.weights | {number: list(weights)})
    epochs.used = True
    # Added inputs need another iteration, which begins here.
    started = position.started and parts is None
    epochs.position = replace(position, open=opened, live=None, begun={}, placed=True, resumed=True, started=started)


def grown_parts(epochs: Epochs, number: str, weights: Sequence[Weight], inputs: Mapping[str, Node]) -> Parts:
    """Return the components of a loader whose mixture has more inputs."""
    if epochs.current_files is not None:
        raise PipelineError(
            "update_mix(add=): the rest of the epoch is read from the files in the state, which have changed since",
            fix="add the input in the next epoch",
        )
    old, node = epochs.parts, epochs.job.binding.mixtures[number]
    mix = cast("Mix", node.operator)
    more = weights[len(mix.weights) :]
    operator = replace(mix, weights=(*mix.weights, *more), names=(*mix.inputs_named, *inputs))
    grown = replace(node, operator=operator, inputs=(*node.inputs, *inputs.values()))
    root = leave_unread(graph.replace(epochs.job.binding.root, lambda each: grown if each is node else None))
    options = old.options
    planner = None if options.plan_for is None or options.plan is not None else options.plan_for(root)
    options = replace(options, planner=planner, plan=None)
    return Parts(root, options, old.job.rank, old.site, old.numeric, old.job.metrics, old.job.weights)


def _check_adds(epochs: Epochs, job: Job, entry: dict[str, Any]) -> None:
    """Raise PipelineError if an input cannot be added to an epoch that has begun."""
    data, old, rank = epochs.position.data, epochs.job, epochs.job.rank
    why = ""
    lanes = [LaneState(*lane) for lane in entry["lanes"] or ()]
    if lanes:
        plain = not entry.get("past") and not any(lane.depth or lane.shared or lane.stop is not None for lane in lanes)
        mine = [lane.number for lane in lanes]
        first = LaneState.first(rank.rank, rank.world, data).number
        of = lanes[0].of
        if not plain or mine != ([*range(of)] if rank.world == 1 and sorted(mine) == mine else [first]):
            why = "the number of ranks changed in this epoch, whose row counts are unknown"
        why = why or job.compiled(_INLINE, data, [], dry=True)[0].unshared(of)
    compiler, _ = old.compiled(_INLINE, data, [], lanes[0].lane([]) if lanes else None, dry=True)
    streams = [each.source if isinstance(each, SharedStream) else each for each in compiler.streams]
    sizes = [(each.binding.row_bytes, min_run_rows(each.binding)) for each in (old, job)]
    if any(isinstance(each, (WindowStream, AssignedStream)) for each in streams) and sizes[0] != sizes[1]:
        why = why or "an operator of another input depends on the size of all rows"
    if why:
        fix = "add it before the first batch of an epoch: at_step= its first step"
        raise PipelineError(f"update_mix(add=): an input cannot join this epoch: {why}", fix=fix)


def _redrawn_entry(
    epochs: Epochs, number: str, weights: list[Weight], data: int, entry: dict[str, Any]
) -> dict[str, Any]:
    """Return the state entry of a data epoch, changed so that the rest of it is drawn with these weights."""
    job, position = epochs.job, epochs.position
    before = list(job.weights.get(number) or mixtures(job.binding)[number].weights)
    change = _Redraw(job, data, number, before, weights)
    if (left := entry.get("before")) is not None:
        earlier = [*weights[: len(before)], *[0.0] * (len(weights) - len(before))]
        left = left | {"entry": _redrawn_entry(epochs, number, earlier, left["epoch"], left["entry"])}
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
    left[number] = [*left[number], *[[[0, None]]] * (len(weights) - len(before))]
    since = position.earlier_steps + position.step
    return {"history": [], "deal": None, "lanes": None, "left": left, "since": since}


@dataclass(frozen=True)
class _Redraw:
    """Changes the weights of mixture ``number`` in data epoch ``data``."""

    job: Job
    data: int
    number: str
    before: list[Weight]
    weights: list[Weight]

    @property
    def adds(self) -> bool:
        """Whether inputs are added."""
        return len(self.weights) > len(self.before)

    @property
    def returns(self) -> bool:
        """Whether an input comes back or is added, of which rows may remain where the other inputs are exhausted."""
        return self.adds or any(new and not old for new, old in zip(self.weights, self.before, strict=True))

    def lane(self, lane: LaneState, past: Past, steps: int | None) -> list[LaneState]:
        """Return the lanes that remain of a lane; ``steps``: how many this rank took, None for an earlier epoch."""
        late, gone = steps is None, lane.position == END
        if lane.cut or (gone and (late or not self.adds)) or (lane.paused and (late or not self.returns)):
            return [lane]
        if lane.turns > 1 and not lane.paused and (steps is None or lane.taken < steps):
            _refuse_turns()  # this rank read other units first, so other ranks may have taken more
        end, whole = first_untaken(lane.history, lane.taken, lane.turns)
        if lane.paused and lane.turns > 1:
            end = EVERYTHING  # only all of its ranks know how many units it had
        if not self.returns:
            return [lane._replace(drawn=self.drawn(lane.drawn, end, self.weights))]
        rest = [None] * len(self.before) if gone else self.rest(lane.lane(past), [], (), lane.position, end)
        if rest is None:
            return [lane] if not self.adds else [LaneState(*lane.finished(lane.position))]
        if self.adds and not whole:
            _refuse_turns()
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
        if rest is None and not self.adds:
            return entry
        if rest is None:  # the mixture has ended
            turn = [0, [0.0] * len(self.weights), [None] * len(self.before)]
            return entry | {"history": [], "deal": None, "drawn": drawn | {self.number: [turn]}}
        return entry | {"history": [], "deal": None, "drawn": drawn | {self.number: [[0, self.weights, rest]]}}

    def left(self, entry: dict[str, Any], taken: list[int]) -> dict[str, Any]:
        """Return what remains of the inputs, if counts are known, after rank ``r`` has received ``taken[r]`` units."""
        job, before = self.job, entry["history"]
        compiler, share = job.compiled(_INLINE, self.data, before, None, dry=True, mixed=mixed_of(entry))
        if compiler.mixture_below([(0, 0)])[0] != self.number:
            raise PipelineError(_BELOW)
        history = [*before, [share.world, share.chunk, taken]]
        left = remaining(compiler.assigned.count, history, share.last, compiler.assigned.rows_of)
        return compiler.remaining_of_mixtures(left)

    def drawn(self, drawn: dict[str, Any], end: int, weights: list[Weight]) -> dict[str, Any]:
        """Return ``drawn`` with a new entry: the weights apply after ``end`` delivered units."""
        compiler, _ = self.job.compiled(_INLINE, self.data, [], dry=True)
        below, _, ((_, first),) = compiler.mixture_below([(0, end)])
        if below != self.number:
            raise PipelineError(_BELOW)
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
        return cast("MixStream", stream.source if isinstance(stream, SharedStream) else stream).rest


def _refuse_turns() -> None:
    raise PipelineError(
        "update_mix(): ranks take turns at the batches of a part of the mixture, and are at different positions in it",
        fix="change weights between two epochs; see the RANKS line of loader.explain()",
    )


def saved_weights(epochs: Epochs) -> dict[str, Any]:
    """Return a state's fields for mixtures: the weights as written and those set during the run, and later changes."""
    job = epochs.job
    weights = {number: [mix.written(), job.weights.get(number)] for number, mix in mixtures(job.binding).items()}
    earlier = epochs.position.earlier_steps
    fields: dict[str, Any] = {"mix": weights} if weights else {}
    fields |= {"earlier": earlier} if epochs.job.binding.scheduled or (weights and earlier) else {}
    later = [[each.step, each.weights, list(each.inputs)] for each in epochs.changes]
    return fields | ({"changes": later} if later else {})


def add_saved_inputs(epochs: Epochs, state: dict[str, Any]) -> None:
    """Add the inputs that had been added when a state was saved, and that this loader adds at an earlier step."""
    later = {name for _, _, names in state.get("changes", []) for name in names}
    reached = state.get("earlier", 0) + state["step"]
    for change in epochs.changes:
        if change.step <= reached and change.inputs and not later & {*change.inputs}:
            number, mix = _mixture(epochs, {*change.weights} - {*change.inputs}, change.site)
            weights = mix.changed(mix.weights, mix.weights) + tuple(change.weights[name] for name in change.inputs)
            epochs.replace_parts(grown_parts(epochs, number, weights, change.inputs), number)


def load_changes(epochs: Epochs, state: dict[str, Any], site: Site | None) -> None:
    """Plan the changes of mixtures that a state contains.

    Raises:
        ResumeError: a change adds an input that this loader does not add.
    """
    inputs = {name: node for each in epochs.changes for name, node in each.inputs.items()}
    saved = state.get("changes", [])
    if lacking := sorted({name for _, _, names in saved for name in names} - {*inputs}):
        step = next(step for step, _, names in saved if lacking[0] in names)
        raise ResumeError(
            f"the state is of a loader whose mixture gets the input {lacking[0]!r} at step {step}",
            site=site,
            done="nothing was loaded",
            fix=f"call update_mix(add={{{lacking[0]!r}: (pipeline, weight)}}, at_step={step}) before load_state_dict()",
        )
    changes = [MixChange(step, weights, {name: inputs[name] for name in names}, site) for step, weights, names in saved]
    now, known = state.get("earlier", 0) + state["step"], {step for step, _, _ in saved}
    later = [each for each in epochs.changes if each.step > now and each.step not in known]  # since the state was saved
    epochs.changes = sorted([*later, *changes], key=lambda each: each.step)


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
