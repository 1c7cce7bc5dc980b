"""cache: the operator; what is kept, and where, is tested next to the stores."""

from __future__ import annotations

import pytest

from cedar.core.errors import PipelineError
from cedar.operators.cache import Cache
from tests.toy_blocks import block, run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "cache(''): invalid location"),
        ((3,), "cache(3): invalid location"),
        (("auto", ""), "a version is a string"),
    ],
)
def test_what_names_no_place_or_version_is_refused_at_the_users_line(arguments, says):
    with pytest.raises(PipelineError) as caught:
        Cache(*arguments)
    assert says in caught.value.what
    assert caught.value.site.file == __file__


def test_labels_show_no_secret():
    assert Cache("memory").label() == "cache('memory')"
    assert Cache("/tmp/rows", layout=True).label() == "layout('/tmp/rows')"
    assert "secret" not in Cache("s3://key:secret@bucket/rows").label()


def test_rows_pass_as_they_are():
    given = block(x=[1, 2, 3])
    assert run(Cache("memory"), given) is given
    assert Cache("memory").schema(given.types) == given.types
    assert Cache("/tmp/rows").storage == "/tmp/rows"
