"""Image operators that decode, crop, resize, flip and change colors, as torchvision.transforms.v2 does.

``p.map(image.decode(), "bytes", into="image").map(image.random_resized_crop(224), "image")``. Images are uint8 arrays
of shape (height, width, channels) until ``to_float``. Spatial operators also accept a column of bounding boxes, which
they transform with the images: ``p.map(image.horizontal_flip(), "image", "boxes")``.
"""

# ruff: noqa: N813 - lower case is what users write: image.decode(...)

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.operators.image.augmenting import RandAugment as rand_augment
from cedar.operators.image.augmenting import TrivialAugment as trivial_augment
from cedar.operators.image.color_jitter import ColorJitter as color_jitter
from cedar.operators.image.crop import CenterCrop as center_crop
from cedar.operators.image.crop import Crop as crop
from cedar.operators.image.decode import Decode as decode
from cedar.operators.image.distort import PhotometricDistort as photometric_distort
from cedar.operators.image.erasing import Erasing as erasing
from cedar.operators.image.flipping import HorizontalFlip as horizontal_flip
from cedar.operators.image.flipping import VerticalFlip as vertical_flip
from cedar.operators.image.gaussian_blur import GaussianBlur as gaussian_blur
from cedar.operators.image.iou_crop import IouCrop as iou_crop
from cedar.operators.image.iou_crop import SanitizeBoxes as sanitize_boxes
from cedar.operators.image.mixing import Cutmix as cutmix
from cedar.operators.image.mixing import Mixup as mixup
from cedar.operators.image.normalize import ChannelsFirst as channels_first
from cedar.operators.image.normalize import Normalize as normalize
from cedar.operators.image.normalize import ToFloat as to_float
from cedar.operators.image.padding import Expand as expand
from cedar.operators.image.padding import Pad as pad
from cedar.operators.image.pixel_transform import Grayscale as grayscale
from cedar.operators.image.random_crop import RandomCrop as random_crop
from cedar.operators.image.random_crop import RandomResizedCrop as random_resized_crop
from cedar.operators.image.resize import Resize as resize
from cedar.operators.image.sharpness import Sharpness as sharpness
from cedar.operators.image.solarize import Autocontrast as autocontrast
from cedar.operators.image.solarize import Equalize as equalize
from cedar.operators.image.solarize import Invert as invert
from cedar.operators.image.solarize import Posterize as posterize
from cedar.operators.image.solarize import Solarize as solarize
from cedar.operators.image.warp import Affine as affine
from cedar.operators.image.warp import Perspective as perspective
from cedar.operators.image.warp import Rotation as rotation

__all__ = [
    "affine", "autocontrast", "center_crop", "channels_first", "color_jitter", "crop", "cutmix", "decode", "equalize",
    "erasing", "expand", "gaussian_blur", "grayscale", "horizontal_flip", "invert", "iou_crop", "mixup", "normalize",
    "pad", "perspective", "photometric_distort", "posterize", "rand_augment", "random_crop", "random_resized_crop",
    "resize", "rotation", "sanitize_boxes", "sharpness", "solarize", "to_float", "trivial_augment", "vertical_flip",
]  # fmt: skip

_ANSWERS = {  # names of torchvision, and names that users guess
    "to_tensor": "to_float(), then image.channels_first()", "mix_up": "mixup()", "cut_mix": "cutmix()",
    "random_grayscale": "grayscale(p=0.1)", "flip": "horizontal_flip() or image.vertical_flip()",
    "random_resize": "random_resized_crop(), or image.resize() for a fixed size",
    "blur": "gaussian_blur()", "color": "color_jitter()", "jitter": "color_jitter()",
    "augment": "rand_augment() or image.trivial_augment()",
}  # fmt: skip

_suggest(globals())


def __getattr__(name: str) -> object:
    """Raise an error that suggests the operator to use instead of a class or function of torchvision."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
    known = {f"random_{each}": f"{each}()" for each in __all__} | {each: f"{each}()" for each in __all__} | _ANSWERS
    answer = f"; use image.{known[words]}" if words in known else ""
    answer = answer or ("; call one operator after the other: p.map(a).map(b)" if words == "compose" else "")
    raise AttributeError(f"cedar.operators.image has no {name!r}{answer}")
