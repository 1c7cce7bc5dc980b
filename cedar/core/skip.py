"""Skip: the policy for rows that fail."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.core.errors import PipelineError, user_site


@dataclass(frozen=True)
class Skip:
    """Drop a row that fails, record it, and stop beyond the budget.

    Args:
        max_rate: the largest share of rows that may be skipped, 0 to 1. Judged on the epoch's rows where their number
            is known, else on the rows seen so far (at least 1,000 until the epoch ends).
        max_count: the largest number of rows that may be skipped in an epoch.
        quarantine: a directory or URL; a JSONL file per rank there gets (epoch, source, row, operator, error) of each
            skipped row.
        refill: True lets the next row take the place of a skipped one, so batches stay full. The number of rows is
            then unknown before the run. False leaves the batch short and shifts no other batch.
        files: True skips what cannot be read of a damaged file, too: cut short, of another format, gone or without
            permission. What was read before the damage is delivered. The rest counts as its rows where metadata tell
            how many there are, else as one row. All columns of a file are read then, as damage in any counts. Without
            it, a damaged file ends the run. Only a policy of the loader (or of ``write``) asks for that.
        blocks: True also drops a block of rows that crashes worker processes although none of its rows does so alone;
            each of its rows counts as skipped. False ends the run with an error that names the block.

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
