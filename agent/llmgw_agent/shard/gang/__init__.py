"""Replicas over several nodes: how their agents act as one, without any of them commanding another."""
