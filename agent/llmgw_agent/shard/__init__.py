"""Shards: what the leader wishes to run here, one worker each."""
