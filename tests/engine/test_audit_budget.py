"""Audits take their share of the time, and no more."""

from __future__ import annotations

import time

import cedar
from cedar import col
from cedar.engine.audit_budget import AuditBudget
from cedar.pipeline.planning import initial_plan


def budget(pipeline: cedar.Pipeline) -> AuditBudget:
    return pipeline.loader(plan=initial_plan(pipeline.node), executor="inline")._epochs.job.plans.audits


def test_audits_take_their_share_of_the_time() -> None:
    audits = budget(cedar.from_items([{"x": i} for i in range(10)]).with_columns(y=col("x") + 1).batch(2))
    audits._opened = time.perf_counter() - 1000.0  # 30 s for audits
    assert audits.due(29.0)
    assert not audits.due(40.0), "the first rows took as long"
    audits.record(10.0, done=True)
    assert audits.due(1.0)
    audits.record(15.0, done=False)
    assert not audits.due(1.0)
    assert 4.0 < audits.seconds < 6.0
    audits._opened -= 1000.0
    assert audits.due(1.0), "35 s are left, and the next one may take 30"
    audits.restart()
    assert not audits.due(1.0)
    audits.share = 1.0
    assert audits.due(40.0)


def test_what_cannot_be_read_again_is_not_audited() -> None:
    audits = budget(cedar.from_iterable(lambda: ({"x": i} for i in range(10)), dtypes={"x": int}).batch(2))
    audits.share = 1.0
    assert not audits.due(0.0)
