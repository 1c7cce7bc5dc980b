"""Settings that cannot be meant are refused, with what is wrong in them."""

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.dlrm.options import TableOptions
from tests.trainers.dlrm.toy_clicks import options


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"features": [], "data": {"dense": [], "log": []}}, "no features are configured"),
        (
            {"features": [{"column": "a", "rows": 3}, {"column": "b", "rows": 4, "table": "a"}]},
            "table 'a' has 3 and 4 rows",
        ),
        ({"features": [{"column": "a", "rows": 3}] * 2}, "a used by several features"),
        ({"features": [{"column": "a", "rows": 3, "pooling": "mean", "weights": "w"}]}, "its pooling must be sum"),
        ({"model": {"width": 9}}, "width 9 is not divisible by heads 2"),
        ({"data": {"dedup": "always"}}, "dedup is 'always'"),
        ({"data": {"pipeline": "a:b"}}, "either paths or a pipeline"),
        ({"data": {"log": ["d7"]}}, "log names d7, which are not in dense"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, told):
    with pytest.raises(CedarError) as failed:
        options("log.parquet", **changes)
    assert told in str(failed.value)


@pytest.mark.parametrize(
    ("feature", "told"),
    [
        ({"column": "a"}, "rows of 'a' is 0: give 1 or more, or a vocabulary"),
        ({"column": "a", "rows": 3, "missing": "oov"}, "needs a vocabulary"),
        ({"column": "a", "vocabulary": "a", "ids": "modulo"}, "set ids to asis"),
        ({"column": "a", "rows": 3, "sliding": True, "pooling": "attention"}, "must be sum or mean"),
    ],
)
def test_settings_of_ids_that_contradict_each_other_are_refused(feature, told):
    with pytest.raises(CedarError) as failed:
        options("log.parquet", features=[feature])
    assert told in str(failed.value)


def test_bytes_of_memory_are_not_negative():
    with pytest.raises(ValueError, match="fast is -1"):
        TableOptions(fast=-1)
