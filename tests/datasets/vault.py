"""A filesystem that wants a key and its secret, and has files of its own for each endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem


class VaultFileSystem(DirFileSystem):  # type: ignore[misc] # fsspec has no types
    """``vault://`` URLs are files below the folder ``endpoint``; errors show the secret, as some clients do."""

    protocol = "vault"

    def __init__(self, endpoint: str, key: str, secret: str, **options: Any) -> None:
        super().__init__(endpoint, LocalFileSystem(), **options)
        self.secret = secret
        if secret != f"secret of {key}":
            raise PermissionError(f"{key} is not allowed in with {secret!r}")

    def info(self, path: str, **options: Any) -> Any:
        if path.endswith("forbidden"):
            raise PermissionError(f"{self.secret!r} does not allow {path}")
        return super().info(path, **options)


fsspec.register_implementation("vault", VaultFileSystem, clobber=True)


def options(place: Path, key: str, secret: str | None = None) -> dict[str, str]:
    """The options of a store in a folder."""
    return {"endpoint": str(place / key), "key": key, "secret": secret or f"secret of {key}"}
