"""``cedar trace``, ``cedar view`` and ``cedar merge``: what a run did when, from its file or its address."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import cedar
from cedar.cli.top import ADDRESS, addresses, ask


def add(adder: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands."""
    view = _command(adder, "view", "show a trace as a page that needs no network", "cedar view run.json --open")
    view.add_argument("file", metavar="FILE", help="of loader(trace=FILE), or of cedar trace")
    view.add_argument("--out", metavar="PAGE", help="the page (default: FILE with the ending .html)")
    view.add_argument("--open", action="store_true", help="show it in a browser")
    view.set_defaults(call=_view)
    trace = _command(
        adder, "trace", "record a run that is served, for a while",
        'cedar trace "http://127.0.0.1:41234/?token=..."\n  cedar trace 4711   # a process of yours on this machine',
    )  # fmt: skip
    trace.add_argument("url", metavar="URL|PID", help=ADDRESS)
    trace.add_argument("--seconds", type=int, default=5, metavar="S", help="1 to 60 (default: 5)")
    trace.add_argument("--out", default="run.json", metavar="FILE", help="default: run.json")
    trace.set_defaults(call=_trace)
    merge = _command(
        adder, "merge", "put traces on one clock, in one file for Perfetto", "cedar merge both.json run.json torch.json"
    )
    merge.add_argument("out", metavar="OUT", help="the file to write")
    merge.add_argument("traces", metavar="TRACE", nargs="+", help="of cedar, or of torch.profiler")
    merge.set_defaults(call=_merge)


def _command(adder: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = adder.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made


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
    found = ask(urlunsplit(parts._replace(path="/trace", query=urlencode(query))), chosen.seconds + 60)
    with open(chosen.out, "wb") as file:
        file.write(found)
    print(f"wrote {chosen.out}")


def _merge(chosen: argparse.Namespace) -> None:
    cedar.merge_traces(chosen.out, chosen.traces)
    print(f"wrote {chosen.out}")
