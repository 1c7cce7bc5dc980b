"""Video transforms: decode files to frames.

``p.map(video.decode(frames=16, fps=8), "bytes", into="frames")`` yields uint8 arrays (frames, height, width, 3). This
module needs the extra ``cedar-data[video]``.
"""

# ruff: noqa: N813 - lower case is what users write: video.decode(...)

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.operators.video.decode import Decode as decode

__all__ = ["decode"]

_suggest(globals())
