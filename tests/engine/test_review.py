"""Found by reading: each failed before its mend."""

import json
import logging

import pyarrow as pa
import pytest

import cedar


def rows(n, size=2, last="drop"):
    return cedar.from_items([{"x": i} for i in range(n)]).batch(size, last=last)


def xs(batches):
    return [batch["x"].tolist() for batch in batches]


def test_a_state_of_the_last_step_ends_its_epoch():
    whole = rows(10).loader(steps=3)
    unbroken = [xs(whole) for _ in range(3)]
    loader = rows(10).loader(steps=3)
    iterator = iter(loader)
    first = [next(iterator)["x"].tolist() for _ in range(3)]
    resumed = rows(10).loader(steps=3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [first + xs(resumed), xs(resumed), xs(resumed)] == unbroken


def test_slices_of_shuffled_batches_are_of_one_batch():
    for n in (9, 18):
        pipeline = rows(n, 4, "keep").shuffle()
        whole = xs(pipeline.loader())
        halves = [xs(pipeline.loader(split_batches=True, rank=rank, world=2)) for rank in range(2)]
        assert [left + right for left, right in zip(*halves, strict=True)] == whole


def test_a_state_before_the_first_batch_stands_where_the_run_does():
    loader = rows(10).loader(steps=2, epoch=1)
    state, again = loader.state_dict(), loader.read(0)["x"].tolist()
    ran = xs(loader)
    assert ran[0] == again
    resumed = rows(10).loader(steps=2, epoch=1)
    resumed.load_state_dict(state)
    assert xs(resumed) == ran


def test_another_ranks_batch_is_refused_where_its_place_is_unknown():
    loaders = [rows(10, last="keep").loader(steps=2, rank=rank, world=2) for rank in range(2)]
    for epoch in range(3):
        got = [xs(loader) for loader in loaders]
        if epoch == 0:
            assert rows(10, last="keep").loader(steps=2, rank=0, world=2).read(0, rank=1)["x"].tolist() == got[1][0]
    with pytest.raises(cedar.PipelineError, match="only rank 1 knows"):
        loaders[0].read(0, rank=1)


def fails_on(*bad):
    def picky(x):
        if x in bad:
            raise ValueError(f"no {x}")
        return x

    return picky


def test_half_a_line_in_the_quarantine_is_passed_over(tmp_path):
    file = tmp_path / "rank-0.jsonl"
    file.write_text('{"source": "a", "ro')
    pipeline = cedar.from_items([{"x": i} for i in range(4)]).map(fails_on(2), "x")
    assert len(list(pipeline.loader(on_error=cedar.Skip(quarantine=str(tmp_path))))) == 3
    assert json.loads(file.read_text().splitlines()[1])["row"] == 2


def test_a_quarantine_that_cannot_be_made_is_our_error(tmp_path):
    (tmp_path / "taken").write_text("")
    pipeline = cedar.from_items([{"x": 1}]).map(fails_on(1), "x", dtype=int)
    with pytest.raises(cedar.PipelineError, match="cannot be written"):
        list(pipeline.loader(on_error=cedar.Skip(quarantine=str(tmp_path / "taken"))))


def test_rows_that_may_be_skipped_have_no_length():
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(1), "x", on_error=cedar.Skip()).loader()
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(cedar.PipelineError, match="use batch"):
        loader.read(0)


def test_a_retry_counts_its_skipped_rows_anew():
    rule = cedar.Skip(max_count=1)
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(0, 1), "x", on_error=rule).loader()
    for _ in range(3):
        with pytest.raises(cedar.RowError, match=r"skipped 2 row"):
            list(loader)


def test_a_table_without_rows_keeps_its_columns():
    empty = cedar.from_arrow(pa.table({"x": pa.array([], pa.int64())}))
    assert empty.to_arrow().schema.names == ["x"]


def test_logging_is_quiet_by_default(caplog):
    with caplog.at_level(logging.WARNING):
        xs(rows(10).loader())
    assert caplog.text == ""
