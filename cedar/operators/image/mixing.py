"""mixup and cutmix: each image of a batch mixed with the one before it, and so are their labels."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import ColumnType, TensorType
from cedar.core.errors import PipelineError, user_site
from cedar.operators.draws import Draws
from cedar.operators.image.spatial import check_share, drawn
from cedar.operators.transform import BadValues, Transform

Array = npt.NDArray[Any]
_DTYPES = ("uint8", "float32", "float64")


class _Mixing(Transform):
    """Reads images and labels of a batch, and writes both: each row with some of the one before it, the first with
    some of the last. A batch draws from its first row's key.
    """

    arity: ClassVar[int | None] = 2
    outputs: ClassVar[int | None] = None
    random: ClassVar[bool] = True
    mixes_rows: ClassVar[bool] = True
    name: ClassVar[str]
    num_classes: int | None
    alpha: float
    p: float

    def __post_init__(self) -> None:
        check_share(self.name, "p", self.p)
        for parameter, types in (("num_classes", int), ("alpha", int | float)):
            value = getattr(self, parameter)
            if parameter == "num_classes" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, types) or not 0 < value < math.inf:
                raise PipelineError(f"{self.name}({parameter}={value!r}): a number above 0", site=user_site())

    @abstractmethod
    def mixed(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        """The images, each with all but ``share`` from the one before it; and what share it was in the end."""

    def result(self, *types: Any) -> tuple[ColumnType, ...]:
        images, labels = types
        if not isinstance(images, TensorType) or len(images.shape) != 3 or images.dtype not in _DTYPES:
            raise PipelineError(
                f"{self.name} takes images of one size, uint8 or floats, and their labels, not {images}",
                fix="give images one size before batch: resize((h, w)), random_resized_crop or center_crop",
            )
        return images, self._labels_type(labels)

    def _labels_type(self, kind: ColumnType) -> ColumnType:
        if isinstance(kind, pa.DataType) and pa.types.is_integer(kind):
            if self.num_classes is None:
                raise PipelineError(f"{self.name}: labels are class ids, of how many it must know", fix="num_classes=")
            return TensorType((self.num_classes,), "float32")
        dense = isinstance(kind, TensorType) and len(kind.shape) == 1
        if not dense or self.num_classes not in (None, kind.shape[0]):
            wants = "of any number of classes" if self.num_classes is None else f"of {self.num_classes} classes"
            raise self.unfit(kind, f"labels next to the images: class ids, or a number for each class, {wants}")
        return TensorType(kind.shape, kind.dtype if kind.dtype.startswith("float") else "float32")

    def columns(self, *columns: Any, **draws: Any) -> tuple[Array, Array]:
        images, labels = columns[0], self._dense(columns[1])
        if not len(images):
            return images, labels
        taken, share, rng = self._drawn(drawn(draws.get("draws")))
        if not taken:
            return images, labels
        images, share = self.mixed(images, share, rng)
        return images, _blend(labels, share)

    def _drawn(self, draws: Draws) -> tuple[bool, float, np.random.Generator]:
        rng = draws.generator(0)
        return rng.random() < self.p, float(rng.beta(self.alpha, self.alpha)), rng

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        if not len(draws):
            return []
        taken, share, rng = self._drawn(draws)
        return [{"share": self.mixed(columns[0], share, rng)[1] if taken else 1.0}] * len(draws)

    def _dense(self, labels: Any) -> Array:
        """A number for each class, floats (rows, classes).

        Raises:
            BadValues: ids that are null, or no class.
        """
        if isinstance(labels, np.ndarray):
            return labels if labels.dtype.kind == "f" else labels.astype(np.float32)
        assert self.num_classes is not None
        ids = labels.to_pylist()
        bad = {i: f"the label {c}" for i, c in enumerate(ids) if c is None or not 0 <= c < self.num_classes}
        if bad:
            raise BadValues(bad, f"class ids are 0 .. {self.num_classes - 1}, of num_classes={self.num_classes}")
        made = np.zeros((len(ids), self.num_classes), dtype=np.float32)
        made[np.arange(len(ids)), ids] = 1
        return made


@dataclass(frozen=True)
class Mixup(_Mixing):
    """Blend each image of a batch with the one before it, and their labels: torchvision.transforms.v2.MixUp.

    ``p.batch(64).map(image.mixup(num_classes=10), "image", "label")``: images of one size, uint8 (rounded) or floats,
    (rows, height, width, channels) or channels first; labels int (rows,), or numbers for each class (rows, classes).
    Labels become float32 (rows, classes), or stay of their float type. The share of the image itself is from the
    distribution Beta(alpha, alpha), one for each batch.

    Args:
        num_classes: how many there are; needed where labels are class ids.
        alpha: above 0.
        p: the probability that a batch is mixed; labels become dense in any case.

    Raises:
        PipelineError: other arguments or columns, or there is no batch.

    Examples:
        >>> images = np.array([0, 100], dtype=np.float32).reshape(2, 1, 1, 1)
        >>> draws = Draws(np.array([5, 6], dtype=np.uint64))
        >>> made, labels = Mixup(2).columns(images, pa.array([0, 1]), draws=draws)
        >>> bool(np.allclose(made[:, 0, 0, 0], labels[:, 1] * 100)), labels.sum(axis=1).tolist()
        (True, [1.0, 1.0])
    """

    num_classes: int | None = None
    alpha: float = 1.0
    p: float = 1.0
    name: ClassVar[str] = "mixup"

    def mixed(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        del rng
        return _blend(images, share), share


@dataclass(frozen=True)
class Cutmix(_Mixing):
    """Paste a part of the image before it into each image of a batch: torchvision.transforms.v2.CutMix.

    As ``mixup`` but for the pixels: a part of the size sqrt(1 - share) of both sides, around a random place and cut at
    the border, comes from the image before. Labels are mixed by areas.

    Args:
        num_classes: how many there are; needed where labels are class ids.
        alpha: above 0.
        p: the probability that a batch is mixed; labels become dense in any case.

    Raises:
        PipelineError: other arguments or columns, or there is no batch.

    Examples:
        >>> images = np.array([0, 100], dtype=np.uint8).repeat(64).reshape(2, 8, 8, 1)
        >>> draws = Draws(np.array([5, 6], dtype=np.uint64))
        >>> made, labels = Cutmix(2).columns(images, pa.array([0, 1]), draws=draws)
        >>> bool(np.allclose(made.mean(axis=(1, 2, 3)), labels[:, 1] * 100))
        True
    """

    num_classes: int | None = None
    alpha: float = 1.0
    p: float = 1.0
    name: ClassVar[str] = "cutmix"

    def mixed(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        made = images.copy()
        last = images.shape[3] <= 4  # the channels; else they are first
        before, painted = (images, made) if last else (images.transpose(0, 2, 3, 1), made.transpose(0, 2, 3, 1))
        sides = np.array(painted.shape[1:3])
        middle, half = rng.integers(0, sides), (0.5 * math.sqrt(1 - share) * sides).astype(np.int64)
        (top, left), (bottom, right) = np.maximum(middle - half, 0), np.minimum(middle + half, sides)
        painted[1:, top:bottom, left:right] = before[:-1, top:bottom, left:right]
        painted[0, top:bottom, left:right] = before[-1, top:bottom, left:right]
        return made, 1 - float((bottom - top) * (right - left) / sides.prod())


def _blend(values: Array, share: float) -> Array:
    """``share`` of each row, the rest of the one before it."""
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
    made = np.roll(values, 1, axis=0) * kind.type(1 - share) + values * kind.type(share)
    return made if values.dtype.kind == "f" else np.rint(made).astype(values.dtype)
