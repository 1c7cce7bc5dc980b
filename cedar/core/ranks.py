"""Finds the rank of this process, the world size, and where both were set."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cedar.core.errors import PipelineError, Site
from cedar.core.limits import as_int
from cedar.core.packages import loaded

_SPECIAL_STEPS = 0xFFFF_FFF0  # SLURM uses step ids from here on for batch scripts, interactive shells and similar


@dataclass(frozen=True)
class Rank:
    """A rank, the world size, and where both were set."""

    rank: int
    world: int
    origin: str


def find_rank(rank: int | None, world: int | None, subgroup: bool, site: Site | None) -> Rank:
    """Return the rank from the arguments, else from torch.distributed, else from the launcher's variables, else 0 of 1.

    Raises:
        PipelineError: a rank outside its world, only one of rank and world, a value that is not an integer, or two
            sources that disagree (unless ``subgroup`` is True: the arguments then number a group inside the job).
    """
    claims: list[Rank] = []
    if rank is not None or world is not None:
        numbers = as_int(rank), as_int(world)
        if rank is None or world is None:
            raise PipelineError(f"rank={rank}, world={world}: give both or neither", site=site)
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise PipelineError(
                f"rank={rank!r}, world={world!r} are not integers", site=site, fix="convert them: rank=int(...)"
            )
        claims.append(Rank(*numbers, "arguments"))
    distributed = loaded("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        claims.append(Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed"))
    claims += _environment(bool(claims), site)
    if not claims:
        return Rank(0, 1, "default")
    first = claims[0]
    if not 0 <= first.rank < first.world:
        raise PipelineError(
            f"rank {first.rank} of {first.world} (from {first.origin}): a rank is between 0 and world - 1", site=site
        )
    for other in claims[1:]:
        if (other.rank, other.world) != (first.rank, first.world) and not (subgroup and first.origin == "arguments"):
            raise PipelineError(
                f"rank and world are set twice, differently: {first.rank} of {first.world} by {first.origin}, "
                f"{other.rank} of {other.world} by {other.origin}",
                site=site,
                done="nothing was read: two processes might have read the same rows",
                fix="set them in one place; if the arguments number a group inside the job (such as the data-parallel "
                "ranks), say so with subgroup=True",
            )
    return first


def refuse_workers(rank: Rank, site: Site | None) -> None:
    """Raise in one of several workers of a torch DataLoader, since each of them would read all rows of the rank.

    Raises:
        PipelineError: this is such a worker, and no arguments say which part of the rows it reads.
    """
    data = loaded("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    if worker is not None and worker.num_workers > 1 and rank.origin != "arguments":
        raise PipelineError(
            f"a loader is iterated in worker {worker.id} of {worker.num_workers} of a torch DataLoader",
            site=site,
            done="nothing was read: each worker would read every row, unless arguments say which rows are its own",
            fix="iterate the loader itself, without the DataLoader: it has workers of its own. Or let each of them "
            "read a part, by loader(rank=worker.id, world=worker.num_workers, subgroup=True); or, where the pipeline "
            "is made of this worker's part already, loader(rank=0, world=1, subgroup=True)",
        )


def _environment(reported: bool, site: Site | None) -> list[Rank]:
    """Return the rank of the first launcher whose variables are set, and of the next one if both must agree.
    ``reported``: True if arguments or torch.distributed set rank and world.

    Only one of a launcher's two variables may be set if another launcher agrees with it. If RANK was not set by
    torchrun, the next launcher must agree: a script that sets one RANK for all tasks makes all of them the same rank.
    SLURM comes last: if MPI starts its ranks through ``srun``, SLURM's variables number machines. Batch scripts and
    interactive shells do not run in a SLURM step, so its variables are ignored there: there is only one process.
    """
    found: list[Rank] = []
    incomplete: list[tuple[str, str]] = []
    step, tasks = os.environ.get("SLURM_STEP_ID"), "SLURM_STEP_NUM_TASKS"
    in_step = tasks in os.environ if step is None else step.isdecimal() and int(step) < _SPECIAL_STEPS
    if tasks not in os.environ and "SLURM_NTASKS" in os.environ:
        tasks = "SLURM_NTASKS"
    mpi = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]
    launchers = [("RANK", "WORLD_SIZE"), *mpi, *([("SLURM_PROCID", tasks)] if in_step else [])]
    for names in launchers[: 1 if reported else None]:
        values = [os.environ.get(name) for name in names]
        if values[0] is not None and values[1] is not None:
            try:
                found.append(Rank(int(values[0]), int(values[1]), " and ".join(names)))
            except ValueError as error:
                numbers = ", ".join(f"{name}={os.environ[name]!r}" for name in names)
                raise PipelineError(f"{numbers} are not integers", site=site) from error
        elif values != [None, None] and not reported:
            incomplete.append(names)
    for names in incomplete:
        given, missing = names if names[0] in os.environ else names[::-1]
        first = found[0] if found else None
        if first is None or os.environ[given] != str(first.rank if given == names[0] else first.world):
            other = f", and {first.origin} say {first.rank} of {first.world}" if first else ""
            raise PipelineError(
                f"{given}={os.environ[given]!r} is set in the environment and {missing} is not{other}",
                site=site,
                done="nothing was read: every process would have read all rows, as rank 0 of 1",
                fix=f"set {missing} as well, or neither; or give loader(rank=, world=)",
            )
    set_manually = bool(found) and found[0].origin == "RANK and WORLD_SIZE" and "TORCHELASTIC_RUN_ID" not in os.environ
    return [each for each in found[: 1 + set_manually] if each.world == found[0].world]
