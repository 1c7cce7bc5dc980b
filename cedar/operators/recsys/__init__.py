"""Column transforms for recommendation data: the sixteen of DPP (Zhao et al., ISCA 2022, arXiv 2108.09373).

``p.map(recsys.FirstX(20), "history").map(recsys.SigridHash(salt=1, max_value=1_000_000), "history")``. Sampling is a
row operator: ``p.apply(recsys.Sampling(0.1))``.
"""

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.operators.recsys.dense import BoxCox, Bucketize, Clamp, Logit, Onehot
from cedar.operators.recsys.hours import GetLocalHour
from cedar.operators.recsys.ids import MapId, PositiveModulus, SigridHash
from cedar.operators.recsys.sampling import Sampling
from cedar.operators.recsys.scores import ComputeScore
from cedar.operators.recsys.sequences import Cartesian, Enumerate, FirstX, IdListTransform, NGram

__all__ = [
    "BoxCox", "Bucketize", "Cartesian", "Clamp", "ComputeScore", "Enumerate", "FirstX", "GetLocalHour",
    "IdListTransform", "Logit", "MapId", "NGram", "Onehot", "PositiveModulus", "Sampling", "SigridHash",
]  # fmt: skip

_suggest(globals())
