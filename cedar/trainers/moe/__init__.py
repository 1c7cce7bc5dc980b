"""A trainer for mixtures of experts: replicas follow popularity at every step, optimizer state never moves."""
