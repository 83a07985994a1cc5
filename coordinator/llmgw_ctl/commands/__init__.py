"""The commands, one module per group; each is a thin function that calls the admin API and prints a view."""
