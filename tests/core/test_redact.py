"""Credentials are replaced in whatever is shown, and nothing else is."""

from __future__ import annotations

import traceback

import pytest

from cedar.core.redact import redact, redact_url, redacted
from tests.core.toy_secrets import TOKEN


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/a?sig=abc", "https://***@host/a?***"),
        ("https://host/a.csv?X-Amz-Signature=abc&x=1", "https://host/a.csv?***"),
        ("s3://me:p@ss@bucket/a@b", "s3://***@bucket/a@b"),
        ("s3://bucket/a?.csv", "s3://bucket/a?.csv"),
        ("simplecache::https://me:pw@host/a", "simplecache::https://***@host/a"),
        ("/local/a?b=c.csv", "/local/a?b=c.csv"),
        ("it failed: 'https://host/a?token=b', sorry", "it failed: 'https://host/a?***', sorry"),
        ("GET /a?sig=abc failed", "GET /a?sig=*** failed"),
        ("aws_secret_access_key=abc", "aws_secret_access_key=***"),
        ("{'password': 'abc'}", "{'password': '***'}"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("column 'token': 5 is not a string", "column 'token': 5 is not a string"),
        ("sort by key=5, token: 3, keys 'a': 'b'", "sort by key=5, token: 3, keys 'a': 'b'"),
        ("AWS_SESSION_TOKEN=abc AWS_SECRET_ACCESS_KEY='a b c'", "AWS_SESSION_TOKEN=*** AWS_SECRET_ACCESS_KEY='***'"),
        ("{'key': 'AKIA', 'secret': 's', 'token': \"t u\"}", "{'key': '***', 'secret': '***', 'token': \"***\"}"),
        ("S3FileSystem(key='AKIA', secret=abc, token=t)", "S3FileSystem(key='***', secret=***, token=***)"),
        ("key=AKIAIOSFODNN7EXAMPLE sas_token=x credential: y", "key=*** sas_token=*** credential: ***"),
        ("{'account_key': 'k==', 'connection_string': 'a;b'}", "{'account_key': '***', 'connection_string': '***'}"),
        ("-s3://me:pw@bucket", "-s3://***@bucket"),
        ("ftp://me:p/w@host/a", "ftp://***@host/a"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
    ],
)
def test_credentials_are_replaced_and_nothing_else(text: str, shown: str):
    assert redact(text) == shown
    assert redact(shown) == shown


HOSTILE = ("a", "a.", "a-", "://", "x://", "://a:b", "?", "*?", "@", "password", "a_", "key ", "key= ", "'", ", '", "=",
           "://?", "&x-", "x-", "authorization ", "\\", "token=", "secret: '")  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(unit: str):
    """A pattern that looks at a text again from each of its places would take minutes for each of these."""
    many = unit * (200_000 // len(unit))
    shown = redact(f"{many}https://me:pw@host/a?b=c password=pw {many}")
    assert len(shown) <= 16_000
    assert "pw" not in shown
    small = unit * 200 + " https://me:pw@host/a?b=c"
    assert redact(redact(small)) == redact(small)
    redact_url(many)


def test_a_long_text_loses_its_middle():
    text = "first " + "x" * 50_000 + " https://me:pw@host " + "y" * 50_000 + " last"
    shown = redact(text)
    assert len(shown) <= 16_000
    assert shown.startswith("first")
    assert shown.endswith("last")
    assert "letters" in shown
    assert redact("x" * 16_000) == "x" * 16_000


def test_a_whole_url_may_hold_spaces():
    assert redact_url("https://me:pw@host/a b?sig=c d") == "https://***@host/a b?***"


def test_causes_are_redacted_in_place_or_replaced():
    class Stubborn(Exception):
        def __str__(self) -> str:
            return f"https://host/?sig={TOKEN}"

    plain = OSError(2, f"https://host/?sig={TOKEN}", f"https://host/?sig={TOKEN}")
    assert redacted(plain) is plain
    assert TOKEN not in str(plain)
    try:
        raise ValueError(f"https://host/?sig={TOKEN}") from Stubborn()
    except ValueError as error:
        replaced = redacted(error)
    printed = "".join(traceback.format_exception(replaced))
    assert TOKEN not in printed
    assert "Stubborn: https://host/?***" in printed
    assert "test_causes_are_redacted" in printed
