"""SimCLR's images by the user's own function, which cedar calls row by row as its peers do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.workloads import simclr
from benchmarks.peers.workloads.simclr import SimCLR


def pipeline(work: SimCLR, _setting: str) -> Any:
    import cedar

    def image(path: str, content: bytes) -> npt.NDArray[np.float32]:
        number = int(path.rpartition("/")[2].partition(".")[0])
        found: npt.NDArray[np.float32] = work.finish(number, content)["image"]
        return found

    return (
        cedar.read_files(f"{work.folder}/images/*.jpg")
        .map(image, "path", "bytes", into="image")
        .select("path", "image")
        .batch(work.batch, last="keep")
    )


WORKLOAD = replace(
    simclr.WORKLOAD,
    name="images_function",
    title="images, a user's function",
    rows=(130, 6000, 12_000),  # epochs of seconds: plans are chosen within the first
    pipeline=pipeline,
    limits={},
    random=False,
    tolerance=0.0,
)
