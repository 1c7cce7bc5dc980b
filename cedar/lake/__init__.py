"""Write files, read Lance and Vortex, convert formats: an extension loaded by name (``cedar.core.packages``)."""
