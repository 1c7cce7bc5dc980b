"""``cedar trace``, ``cedar view`` and ``cedar merge``: record, show and combine traces of runs."""

from __future__ import annotations

import argparse
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import cedar
from cedar.cli.arguments import command
from cedar.cli.top import ADDRESS, addresses, ask
from cedar.core.errors import writing

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder


_MAX_SECONDS = 60  # max seconds to record


def add(adder: Adder) -> None:
    """Register the commands."""
    view = command(adder, "view", "show a trace as a self-contained page", _view, ["run.json --open"])
    view.add_argument("file", metavar="FILE", help="a trace from loader(trace=FILE) or cedar trace")
    view.add_argument("--out", metavar="PAGE", help="the page to write (default: FILE with the extension .html)")
    view.add_argument("--open", action="store_true", help="show it in a browser")
    examples = ['"http://127.0.0.1:41234/?token=..."', "4711   # one of your processes on this machine"]
    trace = command(adder, "trace", "record a trace of a running job", _trace, examples)
    trace.add_argument("url", metavar="URL|PID", help=ADDRESS)
    trace.add_argument("--seconds", type=_span, default=5, metavar="S", help=f"1 to {_MAX_SECONDS} (default: 5)")
    trace.add_argument("--out", default="run.json", metavar="FILE", help="default: run.json")
    examples = ["both.json run.json torch.json"]
    merge = command(adder, "merge", "merge traces into one file for Perfetto, with aligned clocks", _merge, examples)
    merge.add_argument("out", metavar="OUT", help="the file to write")
    merge.add_argument("traces", metavar="TRACE", nargs="+", help="a trace from cedar or torch.profiler")


def _span(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to {_MAX_SECONDS}")
    return int(text)


def _view(chosen: argparse.Namespace) -> None:
    out = cedar.view_trace(chosen.file, chosen.out)
    print(f"wrote {out}")
    if chosen.open:
        webbrowser.open(Path(out).resolve().as_uri())


def _trace(chosen: argparse.Namespace) -> None:
    url, *others = addresses(chosen.url)
    if others:
        raise cedar.PipelineError(f"process {chosen.url} serves {1 + len(others)} loaders", fix=f"name one: {url}, ...")
    parts = urlsplit(url)
    query = {"token": parse_qs(parts.query).get("token", [""])[0], "seconds": str(chosen.seconds)}
    place = chosen.out if os.path.exists(chosen.out) else os.path.dirname(chosen.out) or os.curdir
    with writing(chosen.out):
        if not os.access(place, os.W_OK):  # check this before recording for a while
            raise OSError(f"{place} is not writable")
        trace = ask(urlunsplit(parts._replace(path="/trace", query=urlencode(query))), chosen.seconds + 60)
        with open(chosen.out, "wb") as file:
            file.write(trace)
    print(f"wrote {chosen.out}")


def _merge(chosen: argparse.Namespace) -> None:
    cedar.merge_traces(chosen.out, chosen.traces)
    print(f"wrote {chosen.out}")
