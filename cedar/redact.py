"""Credentials, out of whatever is shown or written: user and password of URLs, their queries, keys named as such."""

from __future__ import annotations

import re
from collections.abc import Iterator

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s'\"<>`]+")
_USER = re.compile(r"://[^/]*@")  # up to the last "@": a password may hold one
_QUERY = re.compile(r"\?(?=[^*]*=).*", re.DOTALL)
_PAIR = re.compile(  # not "token" alone, which is a column of many pipelines
    r"(?i)(\b(?:\w*password|passwd|client_secret|\w*(?:api|access|account|secret)_?key|(?:sas|session)_?token)"
    r"['\"]?\s*[=:]\s*['\"]?|\bauthorization['\"]?\s*[=:]\s*['\"]?(?:basic |bearer )?"
    r"|[?&](?:sig|token|signature|x-[\w-]*(?:signature|credential|token))=)"
    r"(?!None\b|\*\*\*|\.\.\.|bearer |basic )[^\s'\"&,;)}\]]+"
)
_DEPTH = 8  # causes of causes that are looked at


def redact(text: str) -> str:
    """``text`` with ``***`` in place of the user and the query of every URL, and of values that are named as secrets.

    Local paths stay as they are, and so do globs: ``?`` begins a query only where ``=`` follows.

    Example:
        >>> redact("cannot list s3://me:secret@bucket/a?.csv or https://host/b.csv?sig=abc")
        'cannot list s3://***@bucket/a?.csv or https://host/b.csv?***'
        >>> redact("storage_options={'secret_key': 'abc', 'region': 'eu'}")
        "storage_options={'secret_key': '***', 'region': 'eu'}"
    """
    if "://" in text:
        text = _URL.sub(_plain, text)
    return _PAIR.sub(r"\1***", text)


def redact_url(url: str) -> str:
    """As ``redact``, for what is a path or a URL as a whole, spaces and quotes included."""
    if "://" not in url:
        return url
    return _QUERY.sub("?***", _USER.sub("://***@", url))


def _plain(match: re.Match[str]) -> str:
    return redact_url(match[0])


class Redacted(Exception):
    """Stands for an error whose own text shows credentials, whatever one does to it; says its type and the rest."""


def redacted(error: BaseException) -> BaseException:
    """The error, to be the cause of another: its texts, and those of its own causes, redacted, in place if they can be.

    Example:
        >>> redacted(OSError("no answer from https://host/x?token=abc"))
        OSError('no answer from https://host/x?***')
    """
    chain = list(_chain(error))
    for each in chain:
        _redact_one(each)
    if all(redact(str(each)) == str(each) for each in chain):
        return error
    cause: BaseException | None = None
    for each in reversed(chain):
        stand_in = Redacted(redact(f"{type(each).__name__}: {each}")).with_traceback(each.__traceback__)
        stand_in.__cause__ = cause
        cause = stand_in
    return stand_in


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What is printed with an error."""
    current: BaseException | None = error
    for _ in range(_DEPTH):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _redact_one(error: BaseException) -> None:
    try:
        error.args = tuple(redact(a) if isinstance(a, str) else a for a in error.args)
        for name in ("filename", "filename2", "message", "strerror"):
            value = getattr(error, name, None)
            if isinstance(value, str) and redact(value) != value:
                setattr(error, name, redact(value))
    except (AttributeError, TypeError):  # read-only in its class
        return
