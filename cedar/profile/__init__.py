"""Profile: what operators cost on this machine, measured; plain data."""

from cedar.profile.data import Profile, Profiled
from cedar.profile.figures import Machine, Observation, OperatorProfile, Subject

__all__ = ["Machine", "Observation", "OperatorProfile", "Profile", "Profiled", "Subject"]
