"""The whole measurement: inputs, environments, rounds, checks, tables, figures, files."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure, machine
from benchmarks.peers import chart
from benchmarks.peers import entry as entry_module
from benchmarks.peers.entry import Entry
from benchmarks.peers.environments import Environment, here, install_size, made
from benchmarks.peers.figures import figures
from benchmarks.peers.rounds import Contestant, Job, Run, rounds, run, variables
from benchmarks.peers.table import Line, against_dataloader, figures_markdown, line, markdown
from benchmarks.peers.workload import Workload

REFERENCE = "limits"  # the entry whose environment has the functions and nothing else
# Left out of the quick form (but for DataLoader's): what is documented, and what another setting always beats.
SLOWER = (
    "2 workers",
    "own files, 2 workers",
    "own files, batches",
    "2 tasks",
    "2 processes",
    "2 CPUs",
    "own ops",
    "loop",
)
PREPARE_LIMIT, CHECK_LIMIT = 1200, 600  # seconds
TABLE = "<!-- what was measured -->\n"


@dataclass(frozen=True)
class Settings:
    """How a measurement is created. ``form``: 0 tiny, 1 quick, 2 full."""

    form: int
    rounds: int
    seconds: float
    here: bool
    own_data: Path | None
    out: Path
    environments: Path | None
    tuned_only: bool
    page: Path | None = None  # whose part between TABLE and the next line of its kind is what was measured


def measure(workloads: Mapping[str, Workload], entries: Mapping[str, Entry], settings: Settings) -> int:
    """Everything; gives 1 if a row is wrong, or a figure missed but in the tiny form."""
    settings.out.mkdir(parents=True, exist_ok=True)
    folder = settings.environments or settings.out / "envs"
    find = here if settings.here else lambda entry: made(entry, folder)
    environments = {name: find(entry) for name, entry in entries.items()}
    reference = find(entry_module.entry(REFERENCE))
    if reference.python is None or settings.here:
        reference = Environment(sys.executable)
    sizes = {name: install_size(environments[name], entry) for name, entry in entries.items()}
    lines: dict[str, list[Line]] = {}
    reached: list[Figure] = []
    records: list[Run] = []
    for name, workload in workloads.items():
        lines[name], found = one(name, workload, entries, environments, sizes, reference, settings)
        records += found
        reached += figures(name, lines[name])
        print("\n" + against_dataloader(workload.title, workload.unit, lines[name]))
        print("\n" + markdown(workload.title, workload.unit, lines[name]), flush=True)
        write(workloads, lines, reached, records, settings)  # what is there, should the next one be broken off
    print(f"wrote {settings.out}/peers.json, peers.md, peers.png")
    print(figures_markdown(reached))
    wrong = any(x.problem.startswith("wrong") for group in lines.values() for x in group)
    return int(wrong or (settings.form > 0 and any(figure.met is False for figure in reached)))


def one(
    name: str,
    workload: Workload,
    entries: Mapping[str, Entry],
    environments: Mapping[str, Environment],
    sizes: Mapping[str, float | None],
    reference: Environment,
    settings: Settings,
) -> tuple[list[Line], list[Run]]:
    """A workload: its lines, and the runs behind them."""
    rows = workload.rows[settings.form]
    folder = prepared(name, workload, rows, reference, settings)
    job = Job(name, str(folder), rows, 2, settings.seconds)
    contestants, lines = [], []
    for peer, entry in entries.items():
        wanted = entry.settings(workload)
        if settings.tuned_only and entry.name != "DataLoader" and len(wanted) > 1:
            wanted = tuple(s for s in wanted if s not in SLOWER)
        python = environments[peer].python
        if python is None and wanted:
            lines.append(Line(entry.name, "", entry.limit, environments[peer].problem))
        elif python is not None:
            contestants += [Contestant(peer, entry, setting, python) for setting in wanted]
        if python is not None and wanted and entry.convert is not None:
            call = f"entry({peer!r}).convert(workload({name!r}).work({str(folder)!r}, {rows}))"
            imports = "from benchmarks.peers.entry import entry; from benchmarks.peers.workload import workload"
            _in(environments[peer], ["-c", f"{imports}; {call}"], PREPARE_LIMIT)
    scratch = settings.out / "runs" / name
    shutil.rmtree(scratch, ignore_errors=True)
    runs = list(rounds(job, contestants, settings.rounds, scratch, lambda text: print(text, flush=True)))
    wrong = checked(workload, job, contestants, runs, reference, scratch)
    for contestant in contestants:
        of_it = [r for r in runs if (r.entry, r.setting) == (contestant.entry.name, contestant.setting)]
        problem = next((wrong[r.samples] for r in of_it if r.samples is not None and wrong.get(r.samples)), "")
        lines.append(line(of_it, limit=contestant.entry.limit, wrong=problem, size=sizes[contestant.name]))
    shutil.rmtree(scratch, ignore_errors=True)
    return lines, runs


def prepared(name: str, workload: Workload, rows: int, reference: Environment, settings: Settings) -> Path:
    """The folder of a workload's input; made by the environment that has the encoders, and kept while its code is."""
    own = str(settings.own_data.resolve()) if settings.own_data else ""
    writers = {cls.__module__ for cls in inspect.getmro(workload.work)} & {m for m in sys.modules if "peers" in m}
    code = "".join(inspect.getsource(sys.modules[module]) for module in sorted(writers)) + own
    place = settings.out / "data" / f"{name}-{rows}-{hashlib.sha256(code.encode()).hexdigest()[:8]}"
    if place.exists():
        return place
    for old in place.parent.glob(f"{name}-{rows}-*"):
        shutil.rmtree(old, ignore_errors=True)
    partial = place.with_name(f"{place.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    print(f"making the input of {name}: {rows:,} {workload.unit}", flush=True)
    call = f"workload({name!r}).prepare(Path({str(partial)!r}), {rows}, Path({own!r}) if {own!r} else None)"
    statements = f"from pathlib import Path; from benchmarks.peers.workload import workload; {call}"
    _in(reference, ["-c", statements], PREPARE_LIMIT)
    partial.rename(place)
    return place


def checked(
    workload: Workload,
    job: Job,
    contestants: Sequence[Contestant],
    runs: Sequence[Run],
    reference: Environment,
    scratch: Path,
) -> dict[str, str]:
    """What is wrong with each run, by its file of samples; ours is compared with its plan as written, if it draws."""
    samples = [(r.samples, r.entry == "cedar" and workload.random) for r in runs if r.samples and not r.answer.problem]
    if not samples:
        return {}
    own = None
    if any(ours for _, ours in samples):
        ours = next(c for c in contestants if c.entry.name == "cedar")
        plain = run(job, Contestant(ours.name, ours.entry, "as written", ours.python), 0, scratch)
        own = plain.samples
        if plain.answer.problem or own is None:
            return {path: f"the plan as written failed: {plain.answer.problem}" for path, mine in samples if mine}
    order = scratch / "check.json"
    asked = {"workload": job.workload, "folder": job.folder, "rows": job.rows, "samples": samples, "own": own}
    order.write_text(json.dumps(asked), encoding="utf-8")
    told = _in(reference, ["-m", "benchmarks.peers.check", str(order)], CHECK_LIMIT)
    verdicts: dict[str, str] = json.loads(told.splitlines()[-1])
    return verdicts


def _in(environment: Environment, arguments: Sequence[str], seconds: float) -> str:
    """What a command of an environment prints; its error if it fails."""
    assert environment.python is not None
    env = variables(entry_module.entry(REFERENCE), "", Path(os.devnull))
    done = subprocess.run(
        [environment.python, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:120]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def write(
    workloads: Mapping[str, Workload],
    lines: Mapping[str, Sequence[Line]],
    reached: Sequence[Figure],
    runs: Sequence[Run],
    settings: Settings,
) -> None:
    """``peers.json``, ``peers.md``, ``peers.png``, and the page."""
    form = ("tiny", "quick", "full")[settings.form]
    data: dict[str, Any] = {
        "form": form,
        "rounds": settings.rounds,
        "machine": machine(),
        "figures": [asdict(figure) for figure in reached],
        "lines": {name: [asdict(x) for x in group] for name, group in lines.items()},
        "runs": [{k: v for k, v in asdict(r).items() if k != "samples"} for r in runs],
    }
    (settings.out / "peers.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    parts = [f"# Peers: the {form} form, {settings.rounds} rounds", ""]
    parts += [against_dataloader(workloads[name].title, workloads[name].unit, group) for name, group in lines.items()]
    parts.append("")
    parts += [markdown(workloads[name].title, workloads[name].unit, group) for name, group in lines.items()]
    parts.append(figures_markdown(reached))
    (settings.out / "peers.md").write_text("\n".join(parts), encoding="utf-8")
    if settings.page is not None:
        before, _, after = settings.page.read_text(encoding="utf-8").split(TABLE)
        tables = "\n".join(parts[2:]).replace("## ", "### ")
        where = data["machine"]
        packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
        began = (
            f"{datetime.now(UTC):%-d %B %Y}, the {form} form, rounds: {settings.rounds}, {where['cores']} cores"
            f" ({where['cpu']}), Python {where['python']}, {packages}.\n\n"
        )
        settings.page.write_text(TABLE.join((before, began + tables, after)), encoding="utf-8")
    try:
        chart.draw(
            {workloads[name].title: (workloads[name].unit, group) for name, group in lines.items()},
            settings.out / "peers.png",
        )
    except ImportError:
        print("no chart: it needs matplotlib (pip install 'cedar-data[plots]')")
