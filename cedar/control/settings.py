"""The constants of the controller: each with its unit, and why it has this value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerSettings:
    """What decides when plans are looked for, tried and kept.

    Args:
        regret: share of the time so far, 0 to 1, that looking for plans and slots of worse ones may cost: a run that
            gains nothing stays within the 3% that nothing can tell from noise.
        least_gain: seconds that a plan must be expected to save: less is not felt by anyone.
        rare: share of the time so far, 0 to 1, that passes between two looks at least: costs that change in the middle
            of a run are seen before much more than that is lost.
        candidates: plans that are tried of what one look proposes: one for each kind of place.
        slot: seconds at least that a plan is measured for: twice the time of the largest task, so that one task more
            or less is no more than a part of what is compared.
        growth: share of the time so far, 0 to 1, that a slot lasts where that is longer: a long run can afford to
            tell plans apart that differ by little.
        deliveries: pieces of output at least that a speed comes from: one may have been ready before.
        better: share of the time of a row, 0 to 1, that a plan must save: what less would gain is within the regret.
        clear: share of the time of a row, 0 to 1, that a plan is expected to take at most to be tried before the one
            that runs was measured for a slot: no noise makes that much.
        changed: times as slow, or as fast, as when it was last judged, that make what is known of other plans old.
        memory: times as much as what the cost model expects of a plan counts what it just showed; half as much once the
            run has taken twice as long: the machine may have been another's then.
        hopeless: slots that a plan may lose before it is given up, and times as slow that it is taken to be then: it
            starts cold, and one that is much slower need not be waited for.
    """

    regret: float = 0.03
    least_gain: float = 0.25
    rare: float = 0.1
    candidates: int = 3
    slot: float = 0.1
    growth: float = 0.01
    deliveries: int = 4
    better: float = 0.03
    clear: float = 0.5
    changed: float = 1.5
    memory: float = 8.0
    hopeless: float = 3.0
