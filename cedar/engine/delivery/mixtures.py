"""Loader methods that change the weights of mixtures during an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cedar.core.errors import CedarError, PipelineError, ResumeError, Site, user_site
from cedar.engine.delivery.replay import Replays
from cedar.engine.delivery.resharding import Resharding
from cedar.engine.epoch import DataEpoch
from cedar.engine.runner import Runner
from cedar.engine.streams.lane_states import LaneState
from cedar.operators.mix import Mix, Weight


class Mixtures(Resharding):
    """Changes the weights of a mixture for the rest of an epoch."""

    def update_mix(
        self, weights: Mapping[str, float] | Sequence[float] | None = None, *, remove: Iterable[str] = ()
    ) -> None:
        """Change the weights of a ``mix()`` from the next batch on. Each input continues at its current position.

        All ranks must make the same call at the same step, between two batches or before a ``for``. States saved later
        include the new weights. When such a state is loaded, its weights apply if the weights in the pipeline's code
        are the same as when it was saved; otherwise the pipeline's weights apply.

        Args:
            weights: new weights by input name, or by input number as a string if inputs have no names; or one weight
                for each input. Inputs that are not named keep their weights.
            remove: inputs from which no more rows are drawn.

        Raises:
            PipelineError: no ``mix()`` or several have such inputs; a weight is negative; or the position in each
                input cannot be derived from the delivered batches.

        Examples:
            >>> import cedar
            >>> a, b = (cedar.from_items([{"x": v}] * 8).repeat() for v in (0, 1))
            >>> loader = cedar.mix({"a": (a, 0.5), "b": (b, 0.5)}).batch(4).loader(steps=3, executor="inline")
            >>> for batch in loader:
            ...     loader.update_mix(remove=["a"])
            >>> batch["x"].tolist()
            [1, 1, 1, 1]
        """
        site = user_site()
        self._check_exact("update_mix()", site)
        given = dict(weights) if isinstance(weights, Mapping) else weights
        names = [*(given if isinstance(given, dict) else ()), *remove]
        number, mix = self._mixture(list(map(str, names)), site)
        before = tuple(self._job.weights.get(number) or mix.weights)
        changed = mix.changed(before if given is None else given, before)
        changed = mix.changed(dict.fromkeys(map(str, remove), 0.0), changed)
        try:
            self._draw_by(number, changed)
        except CedarError as error:
            error.site = error.site or site
            error.done = "nothing was changed"
            raise

    @property
    def _mixes(self) -> dict[str, Mix]:
        """The mixtures of the pipeline, by number."""
        return {number: cast("Mix", node.operator) for number, node in self._binding.mixtures.items()}

    def _mixture(self, names: list[str], site: Site | None) -> tuple[str, Mix]:
        """Return the mixture that has inputs of these names; raise PipelineError unless there is exactly one."""
        mixes = self._mixes
        fit = [number for number, mix in mixes.items() if set(names) <= set(mix.inputs_named)]
        if len(fit) != 1:
            known = "; ".join(mix.label() for mix in mixes.values()) or "none"
            raise PipelineError(
                f"update_mix(): {'no mixture has' if not fit else 'several mixtures have'} these inputs: {names}",
                site=site,
                done="nothing was changed",
                fix=f"the mixtures are: {known}. Name inputs: mix({{'web': (web, 0.7), 'code': (code, 0.3)}})",
            )
        return fit[0], mixes[fit[0]]

    def _draw_by(self, number: str, weights: Sequence[Weight]) -> None:
        """Draw the rest of a mixture with these weights."""
        if any(map(callable, weights)):
            raise PipelineError(
                "update_mix(): the mixture has weights that are functions", fix="give a number for each of its inputs"
            )
        opened = self._opened()
        entry = opened.get(str(self._data)) or DataEpoch(self._job, Runner("inline", 1), self._data, None).entry()
        opened[str(self._data)] = self._redrawn_entry(number, list(weights), entry)
        self._job = replace(self._job, weights=self._job.weights | {number: list(weights)}, counts={})
        self._reset_replays()
        self._open, self._live = opened, None
        self._unused, self._resumed, self._data_placed, self._redistributed = False, True, True, True
        self._total = None
        self._mark_beginning()

    def _reset_replays(self) -> None:
        """Close open replays, so that batches are recomputed with the current weights."""
        self._replays.close()
        self._replays, self._locator = Replays(self._job, self._options, self._site), None

    def _redrawn_entry(self, number: str, weights: list[Weight], entry: dict[str, Any]) -> dict[str, Any]:
        """Return the state entry of a data epoch, changed so that the rest of it is drawn with these weights."""
        job = self._job
        alone = self.rank.world == 1 or job.split_batches
        before = job.weights.get(number) or list(self._mixes[number].weights)
        if entry["lanes"] is not None:
            lanes = [LaneState(*each) for each in entry["lanes"]]
            if any(lane.shared for lane in lanes):
                self._refuse_turns()
            drawn = [
                lane
                if lane.ended
                else lane._replace(drawn=job.drawn_from(self._data, number, lane.drawn, lane.taken, before, weights))
                for lane in lanes
            ]
            return entry | {"lanes": [list(lane) for lane in drawn]}
        deal = entry["deal"]
        taken = 0 if deal is None else deal[0][0] + deal[1]
        if job.streams(Runner("inline", 1), self._data, [], dry=True)[1].count is None:
            if not alone:
                self._refuse_turns()
            drawn_by = job.drawn_from(self._data, number, entry.get("drawn", {}), taken, before, weights)
            return entry | {"drawn": drawn_by}
        if self._drifts and not alone:
            raise PipelineError(
                "update_mix(): the position of the other ranks cannot be derived from this rank's steps",
                fix='use batch(last="drop") or last=None with steps=',
            )
        left = job.remaining_of_mixtures(self._data, entry, [taken] * (1 if alone else self.rank.world))
        return {"history": [], "deal": None, "lanes": None, "left": left, "since": self._earlier_steps + self._step}

    def _refuse_turns(self) -> None:
        raise PipelineError(
            "update_mix(): ranks take turns at the batches of one mixture, or of a part of it, and are at different "
            "positions",
            fix="change weights between two epochs; see the RANKS line of loader.explain()",
        )

    def _apply_saved_weights(self, state: dict[str, Any], site: Site | None) -> None:
        """Apply the weights of a loaded state, unless the pipeline's own have changed since; see ``update_mix``."""
        mixes = self._mixes
        saved = {number: tuple(each) for number, each in state.get("mix", {}).items() if number in mixes}
        others = {
            number: weights or written
            for number, (written, weights) in saved.items()
            if not _equal_weights(written, mixes[number].written())
        }
        changed = {number: weights for number, (_, weights) in saved.items() if weights and number not in others}
        if saved:
            self._job = replace(self._job, weights=changed | others, counts={})
            self._reset_replays()
        for number, before in others.items():
            try:
                if None in before:
                    raise PipelineError("its weights were functions then, which a state cannot store")
                self._draw_by(number, mixes[number].weights)
            except CedarError as error:
                raise ResumeError(
                    f"{mixes[number].label()} has other weights than when the state was saved: {error.what}",
                    site=site,
                    done="nothing was loaded",
                    fix=error.fix or "load it with the weights that were used when it was saved",
                ) from error
            self._redistributed = False


def _equal_weights(written: Sequence[float | None], mine: Sequence[float | None]) -> bool:
    """Whether a state's weights equal the pipeline's. None means a schedule, whose code ``Identity`` compares."""
    return len(written) == len(mine) and all(a == b for a, b in zip(written, mine, strict=True))
