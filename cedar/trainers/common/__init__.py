"""Code that all trainers share."""
