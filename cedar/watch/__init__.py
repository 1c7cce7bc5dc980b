"""Reports, pages, metrics and traces: an extension, which the core asks for by name (``cedar.core.extensions``)."""
