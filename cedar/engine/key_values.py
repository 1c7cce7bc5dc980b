"""Key-value stores that ranks use to exchange strings: in a folder, a torch.distributed store, or a service."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from cedar.core.extensions import extension
from cedar.executors.choose import names_cluster


class KeyValueStore(ABC):
    """A key-value store shared by all ranks."""

    @abstractmethod
    def set(self, name: str, word: str) -> None:
        """Store a value under a key, replacing an earlier value."""

    @abstractmethod
    def get(self, name: str) -> str | None:
        """Return the value of a key; None if the key is not set."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Delete a key if it exists."""


class TorchKeyValues(KeyValueStore):
    """Keys and values in a store of torch.distributed."""

    _NONE = "\0"  # value that represents a missing key

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, name: str, word: str) -> None:
        self._store.set(name, word)

    def get(self, name: str) -> str | None:
        # The store's ``get`` blocks on a missing key, and a key seen by ``check`` may be deleted before ``get`` runs.
        word = self._store.compare_set(name, self._NONE, self._NONE).decode()  # returns the value and changes nothing
        return None if word == self._NONE else word

    def drop(self, name: str) -> None:
        self._store.delete_key(name)


class FolderKeyValues(KeyValueStore):
    """Keys and values in a folder: one file for each key, written atomically."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "-")

    def set(self, name: str, word: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{uuid.uuid4().hex}"
        new.write_text(word, encoding="utf-8")
        os.replace(new, self._path(name))

    def get(self, name: str) -> str | None:
        try:
            return self._path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)


def key_value_store_at(place: Any) -> KeyValueStore:
    """Return a key-value store in ``place``: a folder, a store of torch.distributed, or a service.

    Raises:
        CedarError: the service is invalid or does not answer.
    """
    if names_cluster(place):
        return extension("cluster.service.meeting").ServiceKeyValues(place)  # type: ignore[no-any-return]
    return FolderKeyValues(place) if isinstance(place, str) else TorchKeyValues(place)
