"""Pictures of a schedule: a Gantt chart in text, and one as PNG (needs the extra ``plots``)."""

from __future__ import annotations

from cedar.trainers.common.files import figure
from cedar.trainers.resilient.schedule.language import Schedule, Worker
from cedar.trainers.resilient.schedule.timeline import Costs, Span, timeline

_COLOURS = {
    "F": "#4c78a8", "B_INPUT": "#59a14f", "B_WEIGHT": "#f2b134", "B": "#59a14f", "ALL_REDUCE": "#9d9d9d",
    "STEP": "#5b5b5b",
}  # fmt: skip
_LETTERS = {"F": "F", "B_INPUT": "B", "B_WEIGHT": "W", "B": "D", "ALL_REDUCE": "A", "STEP": "S"}


def gantt(
    schedule: Schedule, costs: Costs | None = None, *, iterations: int = 1, slot: float = 1, width: int = 400
) -> str:
    """A schedule in text: one line a worker, two characters a slot.

    F, B, W and D are forward, B_INPUT, B_WEIGHT and the fused backward, with the micro-batch's number (its last digit);
    small letters are work for another pipeline; A is ALL_REDUCE, S is STEP, a dot is a bubble.

    Args:
        schedule: drawn as soon as everything can start.
        costs: of each kind; by default 1 each for F, B_INPUT and B_WEIGHT.
        iterations: how many steps are drawn.
        slot: how much time two characters stand for.
        width: how many slots are drawn at most.

    Example:
        >>> from cedar.trainers.resilient.planner import Problem, one_f_one_b
        >>> print(gantt(one_f_one_b(Problem(stages=2, replicas=1, micro_batches=2))))
        (0, 0) F0F1. . D0D0. D1D1
        (1, 0) . F0D0D0F1D1D1. .
    """
    times = timeline(schedule, costs, iterations=iterations, spans=True)
    slots = min(width, max(1, round(times.ends[-1] / slot)))
    lines = {worker: [". "] * slots for worker in schedule.live}
    for span in times.spans:
        letter = _letter(span)
        if letter is not None:
            first = int(span.start / slot + 1e-6)
            for at in range(first, min(slots, max(first + 1, int(span.end / slot + 1e-6)))):
                lines[span.worker][at] = letter
    labels = {worker: str(worker) for worker in lines}
    margin = max(map(len, labels.values()))
    return "\n".join(f"{labels[w]:<{margin}} {''.join(line).rstrip()}" for w, line in lines.items())


def _letter(span: Span) -> str | None:
    letter = _LETTERS.get(span.step.kind)
    if letter is None or span.start == span.end:
        return None
    if span.step.micro_batch < 0:
        return letter + " "
    away = span.step.replica != span.worker.replica
    return f"{letter.lower() if away else letter}{span.step.micro_batch % 10}"


def chart(
    schedule: Schedule, path: str, costs: Costs | None = None, *, iterations: int = 1, title: str | None = None
) -> None:
    """Draw a schedule into a PNG file; work for another pipeline is hatched.

    Args:
        schedule: drawn as soon as everything can start.
        path: of the file.
        costs: of each kind; by default 1 each for F, B_INPUT and B_WEIGHT.
        iterations: how many steps are drawn.
        title: above the picture.

    Raises:
        CedarError: matplotlib is not installed.
    """
    picture = figure(1, 1)
    from matplotlib.patches import Patch

    times = timeline(schedule, costs, iterations=iterations, spans=True)
    rows: dict[Worker, int] = {worker: row for row, worker in enumerate(reversed(schedule.live))}
    size = (min(40.0, max(6.0, times.ends[-1] * 0.3)), min(40.0, 1.2 + 0.3 * len(rows)))
    picture.set_size_inches(size)
    axes = picture.subplots()
    for span in times.spans:
        if span.step.kind in _COLOURS and span.end > span.start:
            away = span.step.replica not in {-1, span.worker.replica}
            axes.barh(
                rows[span.worker], span.end - span.start, left=span.start, height=0.9, color=_COLOURS[span.step.kind],
                edgecolor="white", linewidth=0.5, hatch="///" if away else None,
            )  # fmt: skip
            if span.step.micro_batch >= 0:
                middle = (span.start + span.end) / 2
                axes.text(middle, rows[span.worker], str(span.step.micro_batch), ha="center", va="center", fontsize=6)
    axes.set_yticks(list(rows.values()), [str(worker) for worker in rows])
    axes.set_xlim(0, times.ends[-1])
    axes.set_xlabel("time")
    axes.set_title(title or f"{schedule.mode}, {len(schedule.dead)} dead")
    shown = {span.step.kind for span in times.spans if span.end > span.start}
    axes.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in _COLOURS.items() if kind in shown],
        loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7,
    )  # fmt: skip
    picture.savefig(path, dpi=120)
