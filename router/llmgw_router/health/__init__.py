"""Which replicas can be trusted: passive judgement and active probes."""
