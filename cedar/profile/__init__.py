"""Profile: the measured cost of each operator on this machine, as plain data."""

from cedar.profile.data import Profile, ProfiledPipeline
from cedar.profile.figures import Machine, OperatorProfile, Subject

__all__ = ["Machine", "OperatorProfile", "Profile", "ProfiledPipeline", "Subject"]
