"""``llmgwctl up``: etcd, coordinator, router and agent as children of one foreground process.

Pure: :mod:`layout`, :mod:`plan`, :mod:`machine`, :mod:`hints`. Shells: the rest. Put together in :mod:`app`.
"""
