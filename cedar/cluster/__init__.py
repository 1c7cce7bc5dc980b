"""Dask clusters and the preprocessing service: an extension, loaded by name (``cedar.core.packages``)."""
