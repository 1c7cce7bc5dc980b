"""The controller, a pure function that chooses the plan of a run from the run's measurements."""
