"""Reports, pages, metrics and traces: an extension, which the core loads by name (``cedar.core.extensions``)."""
