"""Versions: what client, scheduler and workers must have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cedar.core.errors import WorkerError

_PACKAGES = ("cedar", "cloudpickle", "pyarrow", "polars", "numpy")
_ASKED = [name for name in _PACKAGES if name != "cloudpickle"]  # Dask tells that one by itself


def check_versions(client: Any, where: str) -> None:
    """Refuse a cluster whose libraries are not those of this process: rows would differ, or code would not load.

    Raises:
        WorkerError: names each part of the cluster and each library that differs.
    """
    try:
        found = client.get_versions(check=False, packages=_ASKED)
    except Exception as error:
        raise WorkerError(
            f"the Dask cluster at {where} does not tell its versions: {type(error).__name__}: {error}",
            done="nothing was run",
            fix="look at the scheduler's log",
        ) from error
    differences = list(differing(found))
    if differences:
        raise WorkerError(
            f"the Dask cluster at {where} has other versions than this process: {'; '.join(differences[:8])}",
            done="nothing was run",
            fix="install the same versions on the client, the scheduler and all workers, and start them again",
        )


def differing(found: Mapping[str, Any]) -> Iterator[str]:
    """What differs, a part of the cluster and a library each, from what ``Client.get_versions`` returned.

    Example:
        >>> def part(version):
        ...     return {"packages": {"cedar": version, "python": "3.11.7.final.0"}}
        >>> found = {"client": part("0.1.0"), "scheduler": part("0.1.0"), "workers": {"tcp://a:1": part(None)}}
        >>> list(differing(found))
        ['worker tcp://a:1: cedar is missing, here 0.1.0']
    """
    ours = _of_interest(found["client"])
    parts = {"scheduler": found["scheduler"]} | {f"worker {at}": each for at, each in found["workers"].items()}
    for name, part in parts.items():
        theirs = _of_interest(part)
        for package, version in ours.items():
            if theirs.get(package) != version:
                yield f"{name}: {package} {_told(theirs.get(package))}, here {version}"


def _of_interest(part: Mapping[str, Any]) -> dict[str, str]:
    """Of one part; Python's version without its last number, which changes nothing."""
    packages = part["packages"]
    kept = {name: packages[name] for name in _PACKAGES if packages.get(name)}
    return kept | {"Python": ".".join(str(packages["python"]).split(".")[:2])}


def _told(version: str | None) -> str:
    return "is missing" if version is None else version
