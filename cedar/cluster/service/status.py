"""ServiceStatus: the current jobs, buffers, workers and stalls of a service."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.cluster.dask.signals import Signal


@dataclass(frozen=True)
class WorkerStatus:
    """A worker: number of threads and tasks, bytes of stored results, and seconds since the last heartbeat."""

    address: str
    threads: int
    tasks: int
    bytes: int
    silent: float


@dataclass(frozen=True)
class ServiceStatus:
    """The service's status, as ``cedar service status`` shows it.

    Args:
        jobs: the latest figures of each loader.
        bounds: min and max number of workers.
        shared, shared_bytes: number and total bytes of the shared results that workers keep.
        reused: how many times a job used an existing shared result.
    """

    address: str
    jobs: tuple[Signal, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    bounds: tuple[int, int] = (0, 0)
    shared: int = 0
    shared_bytes: int = 0
    reused: int = 0

    def job_cells(self) -> list[tuple[str, ...]]:
        """Return the table of jobs as rows of cells, the header first."""
        header = ("job", "rank", "buffered", "waits", "rows/s", "workers busy", "")
        rows = [
            (
                j.job, str(j.rank), f"{j.buffered} of {j.ahead}", f"{j.waiting:.0%}", f"{j.rows_per_second:,.0f}",
                f"{j.busy:.1f}", "stalls" if j.stalls else "",
            )
            for j in self.jobs
        ]  # fmt: skip
        return [header, *rows]

    def worker_cells(self) -> list[tuple[str, ...]]:
        """Return the table of workers as rows of cells, the header first."""
        header = ("worker", "threads", "tasks", "MiB", "heard of")
        rows = [
            (w.address, str(w.threads), str(w.tasks), f"{w.bytes / 2**20:.1f}", f"{w.silent:.1f} s ago")
            for w in self.workers
        ]
        return [header, *rows]

    def summary(self) -> str:
        """Return one line with the address, the number of workers and the shared results."""
        return (
            f"{self.address}: {len(self.workers)} worker(s), {self.bounds[0]} to {self.bounds[1]}; "
            f"{self.shared} shared result(s), {self.shared_bytes / 2**20:.1f} MiB, reused {self.reused} time(s)"
        )

    def __str__(self) -> str:
        """Format the status as plain text.

        Examples:
            >>> print(ServiceStatus("tcp://a:1", (Signal("r", "train", 0, 3, 4, 0.0, 1200.0, 0.8),)))
            job    rank  buffered  waits  rows/s  workers busy
            train  0     3 of 4    0%     1,200   0.8
            <BLANKLINE>
            worker  threads  tasks  MiB  heard of
            <BLANKLINE>
            tcp://a:1: 0 worker(s), 0 to 0; 0 shared result(s), 0.0 MiB, reused 0 time(s)
        """
        return "\n\n".join([_columns(self.job_cells()), _columns(self.worker_cells()), self.summary()])


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
