"""llmgwctl: the operator's command line, and ``up``, the whole stack on one machine."""
