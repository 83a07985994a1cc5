"""The side that connects to engines."""
