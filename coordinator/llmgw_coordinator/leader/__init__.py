"""Who leads, and what the leader does."""
