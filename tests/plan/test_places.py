"""A saved plan names kinds of places; addresses, folders and URLs come from the caller alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import cedar
from cedar.plan.data import Plan
from cedar.plan.graph import walk
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps import Cache
from tests.plan.toy_plans import loaded, moved, stepped, written

ADDRESS = "tls://10.0.0.1:8786"


def on_a_cluster(pipeline: Any) -> Any:
    return moved(pipeline.node, ADDRESS)


def changed(place: Any) -> tuple[str, Any]:
    """The text of a plan, with another place of its map, and its pipeline."""
    pipeline = written()
    found = json.loads(text_of(moved(pipeline.node)))
    found["steps"][-1]["places"][2] = place
    return json.dumps(found), pipeline


def test_no_address_is_written_and_the_caller_gives_it_back() -> None:
    pipeline = written()
    text = text_of(replace(on_a_cluster(pipeline), executor=ADDRESS))
    assert ADDRESS not in text
    with pytest.raises(cedar.PlanError, match="a saved plan does not say which") as caught:
        plan_from(text, pipeline)
    assert "cluster=" in str(caught.value)
    back = plan_from(text, pipeline, cluster="tcp://elsewhere:1")
    assert back.executor == "tcp://elsewhere:1"
    assert [node.place for node in walk(back.root) if node.place] == ["tcp://elsewhere:1"]


def test_load_takes_the_cluster(tmp_path: Any) -> None:
    pipeline = written()
    on_a_cluster(pipeline).save(tmp_path / "plan.json")
    back = cedar.Plan.load(tmp_path / "plan.json", pipeline, cluster=ADDRESS)
    assert ADDRESS in {node.place for node in walk(back.root)}


@pytest.mark.parametrize(
    "place", ["tcp://10.6.6.6:1", "tls://a:1", "ws://a", "somewhere", "/tmp/x", 3, None, ["dask"], {}]
)
def test_a_file_that_names_an_address_is_refused_whatever_the_caller_gives(place: Any) -> None:
    text, pipeline = changed(place)
    for cluster in (None, ADDRESS):
        with pytest.raises(cedar.PlanError, match=r"not a kind of place|not tuple\[str") as caught:
            plan_from(text, pipeline, cluster=cluster)
        assert caught.value.fix


@pytest.mark.parametrize("executor", ["tcp://10.6.6.6:1", "forked", 3, ["threads"]])
def test_an_executor_that_is_an_address_is_refused(executor: Any) -> None:
    pipeline = written()
    found = json.loads(text_of(Plan.as_written(pipeline.node))) | {"executor": executor}
    with pytest.raises(cedar.PlanError, match="'executor' is .* not a kind of place"):
        plan_from(json.dumps(found), pipeline)


@pytest.mark.parametrize("where", ["/data/mine", "s3://bucket/x?key=secret", "cache", "", 3])
def test_a_cache_put_in_by_a_file_has_no_folder(where: Any) -> None:
    pipeline = written()
    found = json.loads(text_of(stepped(pipeline.node, (3, Cache(1)))))
    for entry in ({"where": where}, {"where": where, "layout": True}):
        odd = found | {"steps": [found["steps"][0] | entry]}
        with pytest.raises(cedar.PlanError, match=r"step Cache has \[.*'where'\], not \['above'\]") as caught:
            plan_from(json.dumps(odd), pipeline)
        assert "secret" not in str(caught.value)


def test_the_folder_of_a_cache_is_not_saved() -> None:
    plan = stepped(written().node, (3, Cache(1, "/somewhere", layout=True)))
    assert "somewhere" not in text_of(plan)
    assert [node.storage for node in walk(loaded(plan).root) if node.storage] == ["auto"]
