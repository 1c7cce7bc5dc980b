"""Writers, Lance, Vortex and convert: an extension, which the core asks for by name (``cedar.core.extensions``)."""
