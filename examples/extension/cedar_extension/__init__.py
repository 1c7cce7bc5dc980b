"""What a third party adds to cedar: nothing here is registered anywhere, and cedar imports none of it.

import cedar, cedar_extension as ext

p = cedar.from_source(ext.Squares(10)).apply(ext.Scale("square", 0.5)).apply(ext.AtLeast("n", 500)).batch(8)
with p.loader(executor=ext.OneThread(), rules=(ext.one_scale,)) as loader:
    ...
"""

from .executor import OneThread
from .operators import AtLeast, Scale
from .rule import one_scale
from .source import Squares

__all__ = ["AtLeast", "OneThread", "Scale", "Squares", "one_scale"]
