"""mixup and cutmix: mix each image of a batch and its label with the previous image and label."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import ColumnType, TensorType
from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.draws import Draws
from cedar.operators.image.spatial import check_probability, require_draws
from cedar.operators.transform import BadValues, Transform

Array = npt.NDArray[Any]
_DTYPES = ("uint8", "float32", "float64")


class _Mixing(Transform):
    """Base class: mixes each row's image and label with those of the previous row; the first row uses the last one.
    The random numbers of a batch are seeded by the key of its first row.
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
        check_probability(self.name, "p", self.p)
        for parameter, types in (("num_classes", int | np.integer), ("alpha", int | float | np.number)):
            value = getattr(self, parameter)
            if parameter == "num_classes" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, types) or not 0 < value < math.inf:
                raise invalid_call(f"{self.name}({parameter}={value!r}): must be a number above 0")

    @abstractmethod
    def mix_images(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        """Mix images, keeping ``share`` of each image; return the results and the share that was actually kept."""

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
                raise PipelineError(
                    f"{self.name}: labels are class ids, so the number of classes is required", fix="give num_classes="
                )
            return TensorType((self.num_classes,), "float32")
        dense = isinstance(kind, TensorType) and len(kind.shape) == 1
        if not dense or self.num_classes not in (None, kind.shape[0]):
            wants = "of any number of classes" if self.num_classes is None else f"of {self.num_classes} classes"
            raise self.unfit(kind, f"labels: class ids, or one number per class, {wants}")
        return TensorType(kind.shape, kind.dtype if kind.dtype.startswith("float") else "float32")

    def columns(self, *columns: Any, **draws: Any) -> tuple[Array, Array]:
        images, labels = columns[0], self._dense_labels(columns[1])
        if not len(images):
            return images, labels
        mixes, share, rng = self._draw_share(require_draws(draws.get("draws")))
        if not mixes:
            return images, labels
        images, share = self.mix_images(images, share, rng)
        return images, _blend(labels, share)

    def _draw_share(self, draws: Draws) -> tuple[bool, float, np.random.Generator]:
        rng = draws.generator(0)
        return rng.random() < self.p, float(rng.beta(self.alpha, self.alpha)), rng

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        if not len(draws):
            return []
        mixes, share, rng = self._draw_share(draws)
        return [{"share": self.mix_images(columns[0], share, rng)[1] if mixes else 1.0}] * len(draws)

    def _dense_labels(self, labels: Any) -> Array:
        """Convert labels to floats (rows, classes).

        Raises:
            BadValues: a class id is null or out of range.
        """
        if isinstance(labels, np.ndarray):
            return labels if labels.dtype.kind == "f" else labels.astype(np.float32)
        assert self.num_classes is not None
        ids = labels.to_pylist()
        bad = {i: f"the label {c}" for i, c in enumerate(ids) if c is None or not 0 <= c < self.num_classes}
        if bad:
            raise BadValues(bad, f"class ids must be 0 .. {self.num_classes - 1}, since num_classes={self.num_classes}")
        one_hot = np.zeros((len(ids), self.num_classes), dtype=np.float32)
        one_hot[np.arange(len(ids)), ids] = 1
        return one_hot


@dataclass(frozen=True)
class Mixup(_Mixing):
    """Blend each image and label of a batch with the previous row's: torchvision.transforms.v2.MixUp.

    ``p.batch(64).map(image.mixup(num_classes=10), "image", "label")``. Images of a batch must have one size, channels
    last or first, as uint8 (results are rounded) or floats. Labels are integer class ids (rows,), which become float32
    (rows, classes), or numbers (rows, classes), which keep a float type. The share of the image itself is drawn for
    each batch from Beta(alpha, alpha).

    Args:
        num_classes: number of classes; required if labels are class ids.
        alpha: parameter of the Beta distribution, above 0.
        p: probability that a batch is mixed; class ids become dense labels in any case.

    Raises:
        PipelineError: an argument or column is invalid, or the rows are not batched.

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

    def mix_images(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        del rng
        return _blend(images, share), share


@dataclass(frozen=True)
class Cutmix(_Mixing):
    """Paste a part of the previous image into each image of a batch: torchvision.transforms.v2.CutMix.

    Takes the same columns as ``mixup``. The sides of the pasted part are sqrt(1 - share) of the image's sides. The part
    is centered at a random position and cut off at the border. Labels are mixed in proportion to the areas.

    Args:
        num_classes: number of classes; required if labels are class ids.
        alpha: parameter of the Beta distribution, above 0.
        p: probability that a batch is mixed; class ids become dense labels in any case.

    Raises:
        PipelineError: an argument or column is invalid, or the rows are not batched.

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

    def mix_images(self, images: Array, share: float, rng: np.random.Generator) -> tuple[Array, float]:
        result = images.copy()
        channels_last = images.shape[3] <= 4  # if not, channels are first
        before, painted = (
            (images, result) if channels_last else (images.transpose(0, 2, 3, 1), result.transpose(0, 2, 3, 1))
        )
        sides = np.array(painted.shape[1:3])
        middle, half = rng.integers(0, sides), (0.5 * math.sqrt(1 - share) * sides).astype(np.int64)
        (top, left), (bottom, right) = np.maximum(middle - half, 0), np.minimum(middle + half, sides)
        painted[1:, top:bottom, left:right] = before[:-1, top:bottom, left:right]
        painted[0, top:bottom, left:right] = before[-1, top:bottom, left:right]
        return result, 1 - float((bottom - top) * (right - left) / sides.prod())


def _blend(values: Array, share: float) -> Array:
    """Return ``share`` times each row plus (1 - ``share``) times the previous row."""
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
    blended = np.roll(values, 1, axis=0) * kind.type(1 - share) + values * kind.type(share)
    return blended if values.dtype.kind == "f" else np.rint(blended).astype(values.dtype)
