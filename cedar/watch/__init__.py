"""Reports, pages, metrics and traces: an extension that the core loads by name (see ``cedar.core.packages``)."""
