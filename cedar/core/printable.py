"""Text from files and libraries made safe to show: control characters are escaped, and credentials are removed.

Credentials are the users, passwords and queries of URLs, and values named as secrets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

# C0 and C1 control characters, characters that reverse or hide text, and line separators.
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_ODD_IN_LINE = re.compile(f"[\t\n]|{_ODD.pattern}")


def printable(text: str) -> str:
    r"""Replace control characters by escapes such as ``\x1b``. They could move a terminal's cursor, set its title, or
    disguise a line as another one. Newlines and tabs stay.

    Examples:
        >>> print(printable("a\x1b[2Jb"))
        a\x1b[2Jb
    """
    return _ODD.sub(_escaped, text)


def one_line(text: str) -> str:
    r"""Escape like ``printable``, and also escape newlines and tabs, so that a name cannot begin a new line.

    Examples:
        >>> print(one_line("a\nb"))
        a\nb
    """
    return _ODD_IN_LINE.sub(_escaped, text)


def brief(value: object) -> str:
    """Return the ``repr()`` of an object that prints as several lines: its type and its first line."""
    first, _, rest = str(value).partition("\n")
    return f"<{type(value).__name__}: {first}{'; print() shows all of it' if rest else ''}>"


def escape(text: str) -> str:
    """Escape a text for HTML."""
    import html

    return html.escape(printable(text))


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


# Each pattern begins at a character that it consumes or at the beginning of a word, so matching takes linear time.
_URL = re.compile(r"://[^\s'\"<>`]+")
_USER_INFO = re.compile(  # up to the last "@" before a slash; if a password has a slash, up to the first "@"
    r"://(?:[^/]*@|[^/@\s:]{1,256}:(?!//|\d{1,5}(?:[/?#]|$))[^@\s]{1,256}@)"
)
_STRONG_NAMES = (  # names that are only used for secrets
    r"password|passwd|passphrase|secret|credentials?|connection_?string|"
    r"(?:api|access|account|secret|private|encryption)_?key(?:_?id)?|"
    r"(?:sas|session|access|auth|refresh|bearer|security)_?token"
)
_NAMED = re.compile(  # "token" and "key" are common column names, so they match only as options or as keys of strings
    r"(?i)((?<!\w)\w*(?:" + _STRONG_NAMES + r")['\"]?\s*[=:]\s*"
    r"|(?<!\w)authorization['\"]?\s*[=:]\s*['\"]?(?:basic |bearer )?"
    r"|(?<!\w)(?:token|sas)\s*=\s*|(?<!\w)key\s*=\s*(?=['\"]|[\w/+\-]{12})"
    r"|[{,]\s*['\"](?:token|key|sas|sig)['\"]\s*:\s*(?=['\"])"
    r"|[?&](?:sig|token|signature|x-[\w-]*(?:signature|credential|token))=)"
    r"(?:(['\"])(?!\*\*\*|\2)(?:(?!\2).)+|(?!None\b|\*\*\*|\.\.\.|bearer |basic )[^\s'\"&,;)}\]]+)"
)
_SECRET_NAMES = re.compile(r"(?i)key|secret|token|pass|pwd|cred|sas|sig$|auth|user|connection|cookie|private")
_RENEWABLE = re.compile(r"(?i)secret|token|pass|pwd|cred|sas|sig$|auth|expir|cookie")  # may change for the same store
_MIN_SECRET = 6  # characters; shorter values are too often ordinary words
_secrets: set[str] = set()  # secret values of storage options, which error messages of libraries may contain
_MAX_LENGTH = 16_000  # characters of a text that are shown
_DEPTH = 8  # how many levels of chained exceptions are examined


def redact(text: str) -> str:
    """Replace the user and query of every URL, and values named as secrets, by ``***``.

    Local paths and globs stay unchanged: ``?`` begins a query only if ``=`` follows. The middle of a text of more than
    16,000 characters is left out. Control characters are escaped.

    Examples:
        >>> redact("cannot list s3://me:secret@bucket/a?.csv or https://host/b.csv?sig=abc")
        'cannot list s3://***@bucket/a?.csv or https://host/b.csv?***'
        >>> redact("storage_options={'secret_key': 'abc', 'region': 'eu'}")
        "storage_options={'secret_key': '***', 'region': 'eu'}"
    """
    for secret in [secret for secret in _secrets if secret in text]:
        text = text.replace(secret, "***")
    if "://" in text:
        text = _URL.sub(lambda match: redact_url(match[0]), text)
    text = printable(_NAMED.sub(lambda match: f"{match[1]}{match[2] or ''}***", text))
    if len(text) <= _MAX_LENGTH:
        return text
    reported = f" ... {len(text):,} letters ... "
    half = (_MAX_LENGTH - len(reported)) // 2
    return text[:half] + reported + text[-half:]


class StorageOptions(Mapping[str, Any]):
    """Options of a filesystem, such as endpoints and keys. Their secrets are hidden from all messages.

    Examples:
        >>> options = StorageOptions({"endpoint_url": "http://here", "secret": "hunter2"})
        >>> options, redact("denied for hunter2"), options.mark == StorageOptions({**options, "secret": "new"}).mark
        (StorageOptions(***), 'denied for ***', True)
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        strings = ((name, value) for name, value in _leaf_options(self._given) if isinstance(value, str))
        _secrets.update(text for name, text in strings if _SECRET_NAMES.search(name) and len(text) >= _MIN_SECRET)

    @property
    def mark(self) -> str:
        """Identifies the store with these options. Renewing a secret does not change it."""
        lasting = [(name, str(value)) for name, value in _leaf_options(self._given) if not _RENEWABLE.search(name)]
        return hashlib.sha256(repr(sorted(lasting)).encode()).hexdigest()[:16]

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

    def __reduce__(self) -> tuple[Any, ...]:  # other processes must hide the secrets too
        return StorageOptions, (self._given,)


def _leaf_options(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        yield from _leaf_options(value) if isinstance(value, Mapping) else [(name, value)]


def redact_url(url: str) -> str:
    """Redact a text that is one path or URL, including its spaces and quotes."""
    if "://" not in url:
        return url
    url = _USER_INFO.sub("://***@", url)
    begin = 0
    for part in url.split("*"):  # "?" begins a query only if "=" follows before the next "*"
        query = part.find("?")
        if query >= 0 and part.find("=", query) >= 0:
            return f"{url[: begin + query]}?***"
        begin += len(part) + 1
    return url


class RedactedError(Exception):
    """Replaces an error that shows credentials and cannot be changed. Has the error's type and redacted text."""


def redacted(error: BaseException) -> BaseException:
    """Redact an error and its causes, in place if possible, and return the error or its replacement.

    Examples:
        >>> redacted(OSError("no answer from https://host/x?token=abc"))
        OSError('no answer from https://host/x?***')
    """
    chain = list(_chain(error))
    for each in chain:
        try:
            each.args = tuple(redact(a) if isinstance(a, str) else a for a in each.args)
            for name in ("filename", "filename2", "message", "strerror"):
                value = getattr(each, name, None)
                if isinstance(value, str) and redact(value) != value:
                    setattr(each, name, redact(value))
        except (AttributeError, TypeError):  # the class does not allow changes
            continue
    if all(redact(str(each)) == str(each) for each in chain):
        return error
    cause: BaseException | None = None
    for each in reversed(chain):
        stand_in = RedactedError(redact(f"{type(each).__name__}: {each}")).with_traceback(each.__traceback__)
        stand_in.__cause__ = cause
        cause = stand_in
    return stand_in


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the chained exceptions that Python prints with it."""
    current: BaseException | None = error
    for _ in range(_DEPTH):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
