"""The agent: starts, supervises and adopts engines on one host, and publishes what is true of it.

Read in this order: ``app.py`` (how the parts are wired), ``shard/machine.py`` (the life of a shard), ``shard/worker.py`` (who
lives it), ``process/`` (engine processes that outlive the agent), ``engines/base.py`` (how to add an engine),
``publisher.py`` and ``wishes.py`` (both sides of etcd).
"""

from llmgw_proto import __version__

__all__ = ["__version__"]
