"""Where an endpoint may run, what has been decided about that, and what is somewhere else. Pure."""
