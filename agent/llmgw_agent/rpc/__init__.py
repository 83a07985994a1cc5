"""The agent's gRPC service."""
