"""Audio transforms: decode files to clips, augment clips at random, and convert clips to log-mel spectrograms.

``p.map(audio.decode(rate=16000, mono=True), "bytes", into="audio").map(audio.log_mel(rate=16000), "audio")``. A clip
is a float32 array of (samples,) or (samples, channels). This module needs the extra ``cedar-data[audio]``.
"""

# ruff: noqa: N813 - lower case is what users write: audio.decode(...)

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.operators.audio.decode import Decode as decode
from cedar.operators.audio.decode import DecodeRandom as decode_random
from cedar.operators.audio.decode import Rate as rate
from cedar.operators.audio.log_mel import LogMel as log_mel
from cedar.operators.audio.loudness import Gain as gain
from cedar.operators.audio.loudness import Normalize as normalize
from cedar.operators.audio.loudness import RandomGain as random_gain
from cedar.operators.audio.masks import FrequencyMask as frequency_mask
from cedar.operators.audio.masks import TimeMask as time_mask
from cedar.operators.audio.resample import Resample as resample
from cedar.operators.audio.shape import Crop as crop
from cedar.operators.audio.shape import Pad as pad
from cedar.operators.audio.shape import RandomCrop as random_crop
from cedar.operators.audio.shape import Trim as trim
from cedar.operators.audio.stretch import RandomTimeStretch as random_time_stretch
from cedar.operators.audio.stretch import TimeStretch as time_stretch

__all__ = [
    "crop", "decode", "decode_random", "frequency_mask", "gain", "log_mel", "normalize", "pad", "random_crop",
    "random_gain", "random_time_stretch", "rate", "resample", "time_mask", "time_stretch", "trim",
]  # fmt: skip

_suggest(globals())
