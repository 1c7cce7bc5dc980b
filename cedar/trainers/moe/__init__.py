"""A trainer for mixtures of experts. Replicas follow popularity at every step, and optimizer state never moves."""
