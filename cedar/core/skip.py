"""Skip: the policy for rows that fail."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.core.errors import PipelineError, user_site


@dataclass(frozen=True)
class Skip:
    """Drop rows that fail, record them, and stop the run if too many fail.

    Args:
        max_rate: the largest share of rows that may be skipped, 0 to 1: of the epoch's rows if their number is known,
            else of the rows seen so far (counted as at least 1,000 until the epoch ends).
        max_count: the largest number of rows that may be skipped in an epoch.
        quarantine: a directory or URL. Each rank writes a JSONL file there with (epoch, source, row, operator, error)
            of each skipped row.
        refill: True replaces a skipped row by the next one, so that batches stay full. The number of rows is then
            unknown before the run. False leaves the batch short and does not shift other batches.
        files: True also skips the unreadable parts of a damaged file: truncated, of another format, missing or without
            permission. Rows read before the damage are delivered. The skipped part counts as its number of
            rows if the metadata have that number, else as one row. All columns of a file are then read, to find damage
            in any of them. False ends the run at a damaged file. Only set it for the loader or for ``write``.
        blocks: True also drops a block of rows that crashes worker processes although no single row of it does. Each
            row of the block counts as skipped. False ends the run with an error that names the block.

    Raises:
        PipelineError: a rate outside 0 to 1, or a negative count.

    Examples:
        >>> import cedar
        >>> cedar.Skip(max_rate=0.01).max_rate
        0.01
    """

    max_rate: float | None = None
    max_count: int | None = None
    quarantine: str | None = None
    refill: bool = False
    files: bool = False
    blocks: bool = False

    def __post_init__(self) -> None:
        if self.max_rate is not None and not 0 <= self.max_rate <= 1:
            raise PipelineError(f"Skip(max_rate={self.max_rate}): a rate is between 0 and 1", site=user_site())
        if self.max_count is not None and self.max_count < 0:
            raise PipelineError(f"Skip(max_count={self.max_count}): a count is not negative", site=user_site())
