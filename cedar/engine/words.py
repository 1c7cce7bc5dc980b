"""Words that ranks leave for each other, by name: in a folder, in a store of torch.distributed, or at a service."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from cedar.core.extensions import extension
from cedar.executors.choose import names_cluster


class Words(ABC):
    """What one rank sets, the others get."""

    @abstractmethod
    def set(self, name: str, word: str) -> None:
        """Leave a word, instead of an earlier one of this name."""

    @abstractmethod
    def get(self, name: str) -> str | None:
        """The word of this name, if there is one."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Forget a word, which may be gone already."""


class StoreWords(Words):
    """In a store of torch.distributed."""

    _NONE = "\0"  # no word

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, name: str, word: str) -> None:
        self._store.set(name, word)

    def get(self, name: str) -> str | None:
        # ``get`` waits for a word that is not there, and one that ``check`` saw may be dropped before it
        word = self._store.compare_set(name, self._NONE, self._NONE).decode()  # changes nothing, and says what there is
        return None if word == self._NONE else word

    def drop(self, name: str) -> None:
        self._store.delete_key(name)


class FolderWords(Words):
    """In a folder: a file for each word, which is there as a whole or not at all."""

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


def words_at(place: Any) -> Words:
    """Words at a place where ranks can talk.

    Raises:
        CedarError: it names a service, which is none or does not answer.
    """
    if names_cluster(place):
        return extension("cluster.service.meeting").ServiceWords(place)  # type: ignore[no-any-return]
    return FolderWords(place) if isinstance(place, str) else StoreWords(place)
