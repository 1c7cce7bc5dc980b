"""Dask clusters and the preprocessing service: an extension, see ``cedar.core.extensions``."""
