"""Writers, Lance, Vortex and convert: an extension, see ``cedar.core.extensions``."""
