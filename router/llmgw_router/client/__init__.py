"""The side that clients connect to."""
