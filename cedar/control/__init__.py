"""Which plan runs: decided from what a run shows of itself, by a pure function."""
