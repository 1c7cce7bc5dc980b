"""from_pandas and from_numpy."""

import datetime as dt
from typing import Any

import numpy as np
import pytest

import cedar


def test_a_pandas_frame() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {"x": [1, 2, 3], "s": ["a", None, "c"], "c": pd.Categorical(["u", "v", "u"]), "d": [dt.date(2024, 1, 1)] * 3},
        index=[5, 6, 7],
    )
    pipeline = cedar.from_pandas(frame)
    assert pipeline.columns == ["x", "s", "c", "d"]
    assert list(pipeline)[1] == {"x": 2, "s": None, "c": "v", "d": dt.date(2024, 1, 1)}
    assert pipeline.to_pandas()["x"].tolist() == [1, 2, 3]
    assert len(pipeline.batch(2).loader(format="arrow")) == 2


def test_arrays_of_any_shape() -> None:
    images = np.arange(48, dtype=np.uint8).reshape(4, 3, 4)
    pipeline = cedar.from_numpy(
        {"image": images, "label": np.arange(4), "name": np.array(["a", "b", "c", "d"]), "l": [1, 2, 3, 4]}
    )
    (batch,) = pipeline.select("image", "label", "l").batch(4).loader()
    assert (batch["image"] == images).all()
    assert batch["image"].dtype == np.uint8
    assert batch["l"].tolist() == [1, 2, 3, 4]
    assert [row["name"] for row in pipeline] == list("abcd")
    assert images[0, 0, 0] == 0


def indexed() -> Any:
    import pandas as pd

    return pd.DataFrame({"x": [1]}).set_index("x", drop=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cedar.from_numpy(np.arange(3)), "takes a dict of arrays"),
        (lambda: cedar.from_numpy({"a": np.arange(3), "b": np.arange(2)}), "one entry per row"),
        (lambda: cedar.from_numpy({"a": np.array([object()])}), "column 'a' of object, shape .*: Could not convert"),
        (lambda: cedar.from_numpy({"a": [[1], [2, 3]]}), "column 'a' cannot be an array: .*inhomogeneous"),
        (lambda: cedar.from_numpy({0: np.arange(3)}), "column names must be strings, not 0"),  # type: ignore[dict-item]
        (lambda: cedar.from_pandas({"a": [1]}), "takes a pandas.DataFrame"),
        (lambda: cedar.from_pandas(indexed()), "an index level cannot become a column: .*x"),
    ],
)
def test_what_is_something_else(make: Any, message: str) -> None:
    with pytest.raises(cedar.PipelineError, match=message) as caught:
        make()
    assert __file__ in str(caught.value)
    assert caught.value.fix
