"""Dask clusters and the preprocessing service: an extension, whose functions below the core asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cedar.cluster.dask import cluster_figures as cluster_figures
from cedar.cluster.dask import open_cluster as open_cluster

if TYPE_CHECKING:
    from cedar.engine.agree import Board
    from cedar.engine.words import Words


def is_service(where: Any) -> bool:
    """Whether the scheduler at an address, or that of a Dask client, is a service where ranks can meet.

    Raises:
        WorkerError: it does not answer.
    """
    from cedar.cluster.service.line import is_service

    return is_service(where)


def service_board(service: Any, run: str, rank: int, world: int) -> Board:
    """Where the ranks of a run agree on the end of an epoch, at a service."""
    from cedar.cluster.service.meeting import ServiceBoard

    return ServiceBoard(service, run, rank, world)


def service_words(service: Any) -> Words:
    """Words that ranks leave for each other at a service."""
    from cedar.cluster.service.meeting import ServiceWords

    return ServiceWords(service)
