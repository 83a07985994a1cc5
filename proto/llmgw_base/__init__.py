"""The shared kernel of llmgw's programs: etcd, configuration, clock, logging, metrics, life cycle."""
