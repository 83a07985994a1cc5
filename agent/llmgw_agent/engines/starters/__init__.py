"""Programs that run inside an engine's environment, not the agent's: the standard library and the engine are all they have."""
