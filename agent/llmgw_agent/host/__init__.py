"""Facts about the host, one file each; ``inventory.py`` and ``status.py`` put them together."""
