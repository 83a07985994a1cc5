"""Who may come in, and who waits."""
