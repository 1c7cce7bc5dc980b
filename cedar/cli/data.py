"""``cedar data``: generates, clusters, converts, indexes and inspects data sets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cedar.cli.arguments import command, index, names

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder

_KINDS = ("parquet", "criteo", "otto", "kuairand", "yambda", "mind")


def add(adder: Adder) -> None:
    """Register the commands."""
    data = adder.add_parser("data", help="generate click logs, cluster, convert and index data")
    kinds = data.add_subparsers(title="data", metavar="KIND", required=True)
    _add_clicks(kinds)
    _add_cluster(kinds)
    _add_convert(kinds)
    _add_vocab(kinds)
    _add_inspect(kinds)
    _add_manifest(kinds)


def _add_clicks(kinds: Adder) -> None:
    clicks = command(kinds, "clicks", "write a synthetic click log as Parquet, in order of time", _clicks)
    clicks.add_argument("out", metavar="OUT", help="a directory or URL")
    clicks.add_argument("--rows", type=int, default=500_000, help="number of rows (default: 500000)")
    clicks.add_argument("--seed", type=int, default=0, help="the same seed writes the same rows (default: 0)")
    clicks.add_argument("--samples", type=int, default=16, metavar="S", help="rows per session (default: 16)")
    clicks.add_argument("--vary", action="store_true", help="vary session lengths, with S rows on average")
    chance = "chance that a user feature repeats from the previous row (default: 0.95)"
    clicks.add_argument("--repeats", type=float, default=0.95, metavar="CHANCE", help=chance)
    clicks.add_argument("--lists", type=index, default=0, help="number of further list features (default: 0)")
    clicks.add_argument("--length", type=float, default=20, help="mean length of hist_items and lists (default: 20)")
    slides = "ids by which a changed list slides; 0: it is redrawn (default: 0)"
    clicks.add_argument("--shift", type=int, default=0, metavar="M", help=slides)
    clicks.add_argument("--items", type=int, default=5_000, help="number of items (default: 5000)")
    clicks.add_argument("--skew", type=float, default=0.8, help="popularity is 1 / rank ** SKEW (default: 0.8)")
    clicks.add_argument("--rows-per-file", type=int, default=100_000, metavar="N", help="(default: 100000)")


def _add_cluster(kinds: Adder) -> None:
    summary = "write the rows of each session next to each other, in order of time"
    about = "Reads Parquet, writes Parquet; an interrupted run continues where it was."
    cluster = command(kinds, "cluster", summary, _cluster, about=about)
    cluster.add_argument("paths", metavar="IN", help="a directory, glob or URL")
    cluster.add_argument("out", metavar="OUT", help="a new folder")
    _add_keys(cluster, sort=True)
    cluster.add_argument("--columns-first", default="", metavar="A,B", help="columns to store first in each row group")
    cluster.add_argument("--gap", type=float, metavar="MINUTES", help="a session ends after a pause of this length")
    cluster.add_argument("--unit", default="s", choices=("s", "ms", "us", "ns"), help="unit of times (default: s)")
    cluster.add_argument(
        "--history", action="append", default=[], metavar="COLUMN:N[:event]",
        help="add the last N values before the session, or before each event; can be given several times",
    )  # fmt: skip
    cluster.add_argument("--row-group-rows", type=int, default=65_536, metavar="N", help="minimum (default: 65536)")
    cluster.add_argument(
        "--compression", default="auto", choices=("auto", "zstd", "lz4"),
        help="auto: per column what is read fastest in 1.1 times the bytes of zstd (default: auto)",
    )  # fmt: skip
    cluster.add_argument("--memory", default="1GiB", help="approximate memory of all tasks together (default: 1GiB)")
    cluster.add_argument("--workers", type=int, metavar="N", help="tasks at once (default: the cores)")
    cluster.add_argument("--cluster", metavar="ADDRESS", help="a Dask scheduler whose workers do the work")


def _add_convert(kinds: Adder) -> None:
    summary = "convert data to another format, after comparing formats for a pipeline"
    about = "Measures on the first rows, prints a table, then writes; an interrupted run continues where it was."
    convert = command(kinds, "convert", summary, _convert, about=about)
    convert.add_argument("paths", metavar="SRC", help="a directory, glob or URL of files, or a Lance data set")
    convert.add_argument("out", metavar="DST", nargs="?", help="a folder or URL")
    convert.add_argument(
        "--format", choices=("parquet", "arrow", "vortex", "lance"), help="(default: by what is measured)"
    )
    convert.add_argument("--layout", choices=("fast", "small", "pyarrow"), help="(default: by what is measured)")
    convert.add_argument("--for", dest="pipeline", metavar="MODULE:PIPELINE", help="what will read the data")
    convert.add_argument("--measure", action="store_true", help="print the table, and write nothing")


def _add_vocab(kinds: Adder) -> None:
    summary = "count values and assign ids to frequent ones, in a Parquet file per column"
    vocab = command(kinds, "vocab", summary, _vocab)
    vocab.add_argument("paths", metavar="IN", help="a directory, glob or URL")
    vocab.add_argument("out", metavar="OUT", help="a folder")
    vocab.add_argument("--columns", required=True, metavar="A,B", help="ids, strings, or lists of them")
    vocab.add_argument("--min-count", type=int, default=1, metavar="N", help="omit rarer values (default: 1)")
    vocab.add_argument("--most", type=int, metavar="N", help="largest number of values to keep")
    vocab.add_argument("--oov", type=int, default=0, metavar="ID", help="id of omitted values (default: 0)")
    vocab.add_argument("--null", choices=("oov", "own", "keep"), default="oov", help="the id of nulls (default: oov)")
    vocab.add_argument("--format", default="parquet", choices=_KINDS, help="format of the files (default: parquet)")
    vocab.add_argument("--memory", default="512MiB", help="memory for counts, before they spill (default: 512MiB)")


def _add_inspect(kinds: Adder) -> None:
    summary = "report rows per session, repetition, clustering and predicted gains"
    inspect = command(kinds, "inspect", summary, _inspect)
    inspect.add_argument("paths", metavar="IN", help="a directory, glob or URL of Parquet files")
    _add_keys(inspect, sort=False)
    inspect.add_argument("--batch", type=int, default=2048, help="rows of a batch (default: 2048)")
    inspect.add_argument("--rows", type=int, default=500_000, help="number of first rows to inspect (default: 500000)")
    inspect.add_argument("--check", action="store_true", help="read all rows, and fail unless the log is clustered")


def _add_keys(made: argparse.ArgumentParser, sort: bool) -> None:
    made.add_argument("--session", required=True, metavar="COLUMN", help="the column of session ids (or user ids)")
    made.add_argument("--sort", required=sort, metavar="COLUMN", help="the column of times")


def _add_manifest(kinds: Adder) -> None:
    summary = "list Parquet files and read their footers into one file, for read_parquet(manifest=)"
    about = "An existing manifest is updated: only new or changed files are read."
    manifest = command(kinds, "manifest", summary, _manifest, about=about)
    manifest.add_argument("paths", metavar="IN", nargs="+", help="as read_parquet takes them: directories, globs, URLs")
    manifest.add_argument("--out", required=True, metavar="FILE", help="a path or URL")


def _manifest(chosen: argparse.Namespace) -> None:
    from cedar.datasets.manifest import write_manifest

    print(f"{chosen.out}: {write_manifest(chosen.paths, chosen.out)}")


def _clicks(chosen: argparse.Namespace) -> None:
    from cedar.datasets.clicklog import ClickLog, ListFeature, write_sessions
    from cedar.lake.layouts import describe, layout_of

    def feature(name: str, length: float, ids: int) -> ListFeature:
        return ListFeature(name, length, chosen.repeats, chosen.shift, ids)

    lists = [feature("hist_items", chosen.length, chosen.items), feature("tags", 5.0, 300)]
    lists += [feature(f"list{i}", chosen.length, 100_000) for i in range(chosen.lists)]
    log = ClickLog(
        samples=chosen.samples, vary=chosen.vary, repeats=chosen.repeats, lists=tuple(lists), items=chosen.items,
        skew=chosen.skew,
    )  # fmt: skip
    written = write_sessions(chosen.out, chosen.rows, chosen.seed, log=log, rows_per_file=chosen.rows_per_file)
    print(f"wrote {written.rows:,} rows to {chosen.out}")
    print(f"stored as {describe(layout_of(written.urls[0]))}")
    print(f"{written.clicks:.1%} are clicks; the model that drew them has AUC {written.bayes_auc:.4f}")


def _cluster(chosen: argparse.Namespace) -> None:
    from cedar.recommendation import cluster

    made = cluster(
        chosen.paths, chosen.out, session=chosen.session, sort=chosen.sort, gap=chosen.gap, unit=chosen.unit,
        columns_first=names(chosen.columns_first), histories=[_history(text) for text in chosen.history],
        row_group_rows=chosen.row_group_rows, compression=chosen.compression, memory=chosen.memory,
        workers=chosen.workers, address=chosen.cluster,
    )  # fmt: skip
    print(f"wrote {made}")


def _convert(chosen: argparse.Namespace) -> None:
    import cedar
    from cedar.cli.arguments import load_pipeline

    if chosen.out is None and not chosen.measure:
        raise cedar.PipelineError("cedar data convert: DST is missing", fix="name a folder, or use --measure")
    pipeline = None if chosen.pipeline is None else load_pipeline(chosen.pipeline)
    out = None if chosen.measure else chosen.out
    print(cedar.convert(chosen.paths, out, format=chosen.format, layout=chosen.layout, pipeline=pipeline))


def _vocab(chosen: argparse.Namespace) -> None:
    import cedar
    from cedar import recommendation
    from cedar.core.limits import parse_bytes

    read = cedar.read_parquet if chosen.format == "parquet" else getattr(recommendation, chosen.format)
    step = cedar.preprocessing.Vocabulary(
        names(chosen.columns), min_count=chosen.min_count, max_size=chosen.most, oov=chosen.oov, null=chosen.null,
        memory=parse_bytes(chosen.memory, "--memory"),
    )  # fmt: skip
    fitted = cedar.fit(read(chosen.paths), step)
    vocabularies = {name: fitted[name] for name in fitted.columns}
    recommendation.save_vocabularies(vocabularies, chosen.out)
    for vocabulary in vocabularies.values():
        print(vocabulary)


def _inspect(chosen: argparse.Namespace) -> None:
    from cedar.recommendation import check_clustered, inspect

    print(inspect(chosen.paths, session=chosen.session, sort=chosen.sort, batch=chosen.batch, rows=chosen.rows))
    if chosen.check:
        check_clustered(chosen.paths, session=chosen.session, sort=chosen.sort)
        print("all rows: clustered")


def _history(text: str) -> Any:
    from cedar.core.errors import PipelineError
    from cedar.recommendation import history

    column, _, rest = text.partition(":")
    number, _, at = rest.partition(":")
    if not number.isdecimal():
        raise PipelineError(f"--history {text!r}", fix="write it like item_id:50, or item_id:50:event")
    return history(column, int(number), at or "session")  # type: ignore[arg-type]
