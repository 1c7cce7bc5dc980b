"""polars' ``col``, imported at the first call, so that ``from cedar import col`` stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polars import col as col  # noqa: PLC0414 - re-exported
else:

    class _Col:
        """``polars.col``: ``col("x")``, ``col.x``, ``col("^int_.*$")``."""

        def __call__(self, *names: Any) -> Any:
            import polars as pl

            return pl.col(*names)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            import polars as pl

            return getattr(pl.col, name)

        def __repr__(self) -> str:
            return "cedar.col"

    col = _Col()
