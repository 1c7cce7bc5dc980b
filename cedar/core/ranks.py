"""Which rank this is, of how many, and who said so."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from cedar.core.errors import PipelineError, Site
from cedar.core.sizes import as_int


@dataclass(frozen=True)
class Rank:
    """A rank, the size of its world, and where both come from."""

    rank: int
    world: int
    origin: str


def find_rank(rank: int | None, world: int | None, subgroup: bool, site: Site | None) -> Rank:
    """The arguments if given, else torch.distributed if initialised, else RANK and WORLD_SIZE, else 0 of 1.

    Raises:
        PipelineError: a rank outside its world, one of the two missing or no whole number, or two places that
            disagree (unless ``subgroup`` says that the arguments number a group inside the job).
    """
    told = [r for r in (_arguments(rank, world, site), _distributed()) if r is not None]
    claims = [*told, *_environment(half=bool(told), site=site)]
    if not claims:
        return Rank(0, 1, "default")
    first = claims[0]
    if not 0 <= first.rank < first.world:
        raise PipelineError(
            f"rank {first.rank} of {first.world} (from {first.origin}): a rank lies between 0 and world - 1", site=site
        )
    for other in claims[1:]:
        if (other.rank, other.world) != (first.rank, first.world) and not (subgroup and first.origin == "arguments"):
            raise PipelineError(
                f"rank and world are set twice, differently: {first.rank} of {first.world} by {first.origin}, "
                f"{other.rank} of {other.world} by {other.origin}",
                site=site,
                done="no loader was made: two processes might have read the same rows",
                fix="set them in one place; if the arguments number a group inside the job (such as the data-parallel "
                "ranks), say so with subgroup=True",
            )
    return first


def slurm_step() -> Rank | None:
    """The task of a step that ``srun`` began; None outside of one.

    The variables of a batch script, or of a shell in an allocation, number nothing: there is one process.
    """
    rank, world = os.environ.get("SLURM_PROCID", ""), os.environ.get("SLURM_STEP_NUM_TASKS", "")
    if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
        return Rank(int(rank), int(world), "SLURM_PROCID and SLURM_STEP_NUM_TASKS")
    return None


def refuse_workers(rank: Rank, site: Site | None) -> None:
    """Refuse to be read by several workers of a torch DataLoader, each of which would read all rows of the rank.

    Raises:
        PipelineError: in such a worker, unless arguments say which part of the rows is for it.
    """
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    if worker is not None and worker.num_workers > 1 and rank.origin != "arguments":
        raise PipelineError(
            f"a loader is read in worker {worker.id} of {worker.num_workers} of a torch DataLoader",
            site=site,
            done="nothing was read: each worker would read every row, unless arguments say which are its own",
            fix="iterate the loader itself, without the DataLoader: it has workers of its own. Or let each of them "
            "read a part, by loader(rank=worker.id, world=worker.num_workers, subgroup=True); or, where the pipeline "
            "is made of this worker's part already, loader(rank=0, world=1, subgroup=True)",
        )


def _arguments(rank: int | None, world: int | None, site: Site | None) -> Rank | None:
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        raise PipelineError(f"rank={rank}, world={world}: give both or neither", site=site)
    numbers = as_int(rank), as_int(world)
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise PipelineError(
            f"rank={rank!r}, world={world!r} are not whole numbers", site=site, fix="convert them: rank=int(...)"
        )
    return Rank(*numbers, "arguments")


def _distributed() -> Rank | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Rank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _environment(half: bool, site: Site | None) -> list[Rank]:
    """What RANK and WORLD_SIZE say; ``half``: one of them may be missing, since something else says both."""
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return []
    if rank is None or world is None:
        if half:
            return []
        given, missing = (f"WORLD_SIZE={world!r}", "RANK") if rank is None else (f"RANK={rank!r}", "WORLD_SIZE")
        raise PipelineError(
            f"{given} is set in the environment and {missing} is not",
            site=site,
            done="no loader was made: every process would have read all rows, as rank 0 of 1",
            fix=f"set {missing} as well, or neither; or give loader(rank=, world=)",
        )
    try:
        return [Rank(int(rank), int(world), "RANK and WORLD_SIZE")]
    except ValueError as error:
        raise PipelineError(f"RANK={rank!r}, WORLD_SIZE={world!r} are not whole numbers", site=site) from error
