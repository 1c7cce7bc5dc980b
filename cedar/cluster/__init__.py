"""Dask clusters and the preprocessing service: an extension, which the core asks for (``cedar.core.extensions``)."""
