"""Recovery: retry tasks whose worker died, and find the row that crashes workers.

Retries are safe: kernels are pure, and random draws depend only on the row. The caller receives exactly one result.
"""
