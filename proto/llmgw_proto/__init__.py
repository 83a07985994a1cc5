"""The contract between llmgw's programs: etcd keys, the records stored under them, and the agent's gRPC service.

Nothing here does I/O and nothing here imports the rest of llmgw.
"""

__version__ = "0.1.0"

#: Version of the record layouts. A program reads every record of this major version, keeps the fields that it does not
#: know when it writes the record back, and refuses a cluster whose ``schema_version`` is greater.
SCHEMA_VERSION = 1
