"""Waiting for a wish to come true: what counts as done or hopeless (pure), asking again, showing how far it is."""
