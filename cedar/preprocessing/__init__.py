"""What is learned from the rows by one pass, and applied to them: ``cedar.fit(p, StandardScaler("x"), ...)``."""

from cedar.preprocessing.fitted import Fitted, fit
from cedar.preprocessing.steps import MinMaxScaler, Quantiles, StandardScaler, Step, Vocabulary

__all__ = ["Fitted", "MinMaxScaler", "Quantiles", "StandardScaler", "Step", "Vocabulary", "fit"]
