"""Preprocessors that are fitted in one pass over the rows: ``cedar.fit(p, StandardScaler("x"), ...)``."""

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.preprocessing.fitted import Fitted, fit
from cedar.preprocessing.steps import MinMaxScaler, Quantiles, StandardScaler, Step, Vocabulary

__all__ = ["Fitted", "MinMaxScaler", "Quantiles", "StandardScaler", "Step", "Vocabulary", "fit"]

_suggest(globals())
