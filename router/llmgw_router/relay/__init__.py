"""One request's life between a client and an engine."""
