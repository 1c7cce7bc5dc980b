"""Credentials, out of whatever is shown or written: user and password of URLs, their queries, keys named as such."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cedar.core.printable import printable

# Each pattern begins at a mark that it consumes, or at the beginning of a word: the work grows as the text does.
_URL = re.compile(r"://[^\s'\"<>`]+")
_USER = re.compile(  # up to the last "@" before a slash: a password may hold one; and one that holds a slash, up to "@"
    r"://(?:[^/]*@|[^/@\s:]{1,256}:(?!//|\d{1,5}(?:[/?#]|$))[^@\s]{1,256}@)"
)
_STRONG = (  # names that nothing but secrets have
    r"password|passwd|passphrase|secret|credentials?|connection_?string|"
    r"(?:api|access|account|secret|private|encryption)_?key(?:_?id)?|"
    r"(?:sas|session|access|auth|refresh|bearer|security)_?token"
)
_PAIR = re.compile(  # "token" and "key" are columns of many pipelines: only as options, or in a dict with a text
    r"(?i)((?<!\w)\w*(?:" + _STRONG + r")['\"]?\s*[=:]\s*"
    r"|(?<!\w)authorization['\"]?\s*[=:]\s*['\"]?(?:basic |bearer )?"
    r"|(?<!\w)(?:token|sas)\s*=\s*|(?<!\w)key\s*=\s*(?=['\"]|[\w/+\-]{12})"
    r"|[{,]\s*['\"](?:token|key|sas|sig)['\"]\s*:\s*(?=['\"])"
    r"|[?&](?:sig|token|signature|x-[\w-]*(?:signature|credential|token))=)"
    r"(?:(['\"])(?!\*\*\*|\2)(?:(?!\2).)+|(?!None\b|\*\*\*|\.\.\.|bearer |basic )[^\s'\"&,;)}\]]+)"
)
_SECRET_NAMES = re.compile(r"(?i)key|secret|token|pass|pwd|cred|sas|sig$|auth|user|connection|cookie|private")
_RENEWED = re.compile(r"(?i)secret|token|pass|pwd|cred|sas|sig$|auth|expir|cookie")  # with them a store stays the same
_MIN_SECRET = 6  # letters: shorter values are ordinary words too often
_secrets: set[str] = set()  # values of storage options in this process, which errors of libraries may show
_MOST = 16_000  # letters of a text that are shown
_DEPTH = 8  # causes of causes that are inspected


def redact(text: str) -> str:
    """``text`` with ``***`` in place of the user and the query of every URL, and of values that are named as secrets.

    Local paths stay unchanged, and so do globs: ``?`` begins a query only where ``=`` follows. A text of more than
    16,000 letters loses its middle. Control characters are escaped.

    Examples:
        >>> redact("cannot list s3://me:secret@bucket/a?.csv or https://host/b.csv?sig=abc")
        'cannot list s3://***@bucket/a?.csv or https://host/b.csv?***'
        >>> redact("storage_options={'secret_key': 'abc', 'region': 'eu'}")
        "storage_options={'secret_key': '***', 'region': 'eu'}"
    """
    for secret in [secret for secret in _secrets if secret in text]:
        text = text.replace(secret, "***")
    if "://" in text:
        text = _URL.sub(_plain, text)
    text = printable(_PAIR.sub(_hidden, text))
    if len(text) <= _MOST:
        return text
    reported = f" ... {len(text):,} letters ... "
    half = (_MOST - len(reported)) // 2
    return text[:half] + reported + text[-half:]


class StorageOptions(Mapping[str, Any]):
    """Options of a filesystem, such as endpoints and keys, whose secrets are shown nowhere.

    Examples:
        >>> options = StorageOptions({"endpoint_url": "http://here", "secret": "hunter2"})
        >>> options, redact("denied for hunter2"), options.mark == StorageOptions({**options, "secret": "new"}).mark
        (StorageOptions(***), 'denied for ***', True)
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        strings = ((name, value) for name, value in _leaves(self._given) if isinstance(value, str))
        _secrets.update(text for name, text in strings if _SECRET_NAMES.search(name) and len(text) >= _MIN_SECRET)

    @property
    def mark(self) -> str:
        """Tells this store from others; a secret that is renewed changes nothing."""
        reported = [(name, str(value)) for name, value in _leaves(self._given) if not _RENEWED.search(name)]
        return hashlib.sha256(repr(sorted(reported)).encode()).hexdigest()[:16]

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __hash__(self) -> int:
        return hash(self.mark)

    def __repr__(self) -> str:
        return "StorageOptions(***)"

    def __reduce__(self) -> tuple[Any, ...]:  # other processes hide its secrets too
        return StorageOptions, (self._given,)


def _leaves(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        yield from _leaves(value) if isinstance(value, Mapping) else [(name, value)]


def _hidden(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2] or ''}***"


def redact_url(url: str) -> str:
    """As ``redact``, for what is a path or a URL as a whole, spaces and quotes included."""
    if "://" not in url:
        return url
    url = _USER.sub("://***@", url)
    begin = 0
    for part in url.split("*"):  # what lies beyond a "*" is not a query, or was hidden already
        query = part.find("?")
        if query >= 0 and part.find("=", query) >= 0:
            return f"{url[: begin + query]}?***"
        begin += len(part) + 1
    return url


def _plain(match: re.Match[str]) -> str:
    return redact_url(match[0])


class RedactedError(Exception):
    """Stands for an error whose own text shows credentials, whatever one does to it; says its type and the rest."""


def redacted(error: BaseException) -> BaseException:
    """The error, to be the cause of another: its text and that of its own causes redacted, in place if possible.

    Examples:
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
        stand_in = RedactedError(redact(f"{type(each).__name__}: {each}")).with_traceback(each.__traceback__)
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
