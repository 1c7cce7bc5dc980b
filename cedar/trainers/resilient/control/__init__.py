"""Who is alive, which generation it is, and what of a step counts. Nothing in here starts a thread of torch."""
