"""A controller that takes the first plan that is proposed and sound, whatever it gains: for tests of what plans do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cedar.control.controller import Action, Look, Observation, Prepare, State, Switch


def eager(state: State, seen: Observation, _: Any = None) -> tuple[State, tuple[Action, ...]]:
    """In the place of ``step``: the fastest other plan that needs no start runs as soon as it is checked."""
    if seen.candidates is not None:
        known = {c.key: c for c in seen.candidates}
        others = (c for c in known.values() if c.key != seen.plan)  # noise may make the plan that runs look best
        best = min(others, key=lambda c: (c.start, c.seconds), default=None)
        state = replace(state, phase="runs", looks=state.looks + 1, known=known)
        return (state, ()) if best is None else (replace(state, prepared={best.key: seen.now}), (Prepare(best.key),))
    if not state.looks and state.phase == "runs" and seen.informed:
        return replace(state, phase="looks"), (Look(),)
    ready = seen.ready & state.prepared.keys()
    if ready and not state.trial:
        (key,) = ready
        return replace(state, trial=key), (Switch(key, "the first that was proposed"),)
    return state, ()
