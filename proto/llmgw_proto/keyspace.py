"""Names of all keys in etcd.

Every key starts with ``/llmgw/v1/``. A part that a user may choose freely (a model or node name) is percent-encoded, so
that ``org/model`` stays one part and keys can be split at ``/`` without ambiguity.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

PREFIX = "/llmgw/v1/"

CLUSTER = PREFIX + "cluster"
LEADER = PREFIX + "leader/"
COORDINATORS = PREFIX + "coordinators/"
MODELS = PREFIX + "models/"
NODES = PREFIX + "nodes/"
ASSIGNMENTS = PREFIX + "assignments/"
SHARDS = PREFIX + "shards/"
ENDPOINTS = PREFIX + "endpoints/"
ROUTERS = PREFIX + "routers/"
DEMAND = PREFIX + "demand/"
FABRIC = PREFIX + "fabric/"
ENGINES = PREFIX + "engines/"
ENGINE_LOCKS = PREFIX + "engine-locks/"
FABRIC_PORTS = PREFIX + "fabric-ports/"
WEIGHTS = PREFIX + "weights/"


def part(name: str) -> str:
    """Encodes a free name as one part of a key: ``org/model`` becomes ``org%2Fmodel``."""
    return quote(name, safe="@:+")


def coordinator(coordinator_id: str) -> str:
    return COORDINATORS + part(coordinator_id)


def leader(coordinator_id: str) -> str:
    """The candidate's key in the election; the lowest create_revision under :data:`LEADER` leads."""
    return LEADER + part(coordinator_id)


def model(name: str) -> str:
    return MODELS + part(name)


def inventory(node: str) -> str:
    return f"{NODES}{part(node)}/inventory"


def node_status(node: str) -> str:
    return f"{NODES}{part(node)}/status"


def alive(node: str) -> str:
    return f"{NODES}{part(node)}/alive"


def assignments_of(node: str) -> str:
    """The prefix that one agent watches."""
    return f"{ASSIGNMENTS}{part(node)}/"


def assignment(node: str, shard: str) -> str:
    return assignments_of(node) + part(shard)


def shards_of(node: str) -> str:
    return f"{SHARDS}{part(node)}/"


def shard(node: str, shard_id: str) -> str:
    return shards_of(node) + part(shard_id)


def endpoints_of(node: str) -> str:
    return f"{ENDPOINTS}{part(node)}/"


def endpoint(node: str, replica: str) -> str:
    return endpoints_of(node) + part(replica)


def router(router_id: str) -> str:
    return ROUTERS + part(router_id)


def demand(model_name: str) -> str:
    return DEMAND + part(model_name)


def fabric(subnet: str) -> str:
    """The map of one InfiniBand subnet."""
    return FABRIC + part(subnet)


def fabric_ports_of(node: str) -> str:
    return f"{FABRIC_PORTS}{part(node)}/"


def fabric_ports(node: str) -> str:
    """The InfiniBand ports through which an alive node can map."""
    return fabric_ports_of(node) + "ports"


def weights_of(content: str) -> str:
    """The prefix over which a node that wants a content finds those that have it or fetch it."""
    return f"{WEIGHTS}{part(content)}/"


def weights(content: str, node: str) -> str:
    """``content`` is the digest of a manifest: of the names and digests of all files of a model."""
    return weights_of(content) + part(node)


def engine(name: str) -> str:
    """The fleet's settings for an engine."""
    return ENGINES + part(name)


def engine_locks_of(name: str) -> str:
    return f"{ENGINE_LOCKS}{part(name)}/"


def engine_lock(name: str, version: str) -> str:
    """The lock itself, a requirements file: large, so nobody watches it."""
    return engine_locks_of(name) + part(version)


def split(key: str, under: str) -> tuple[str, ...]:
    """Decodes the parts of ``key`` below the prefix ``under``.

    >>> split("/llmgw/v1/models/org%2Fm", MODELS)
    ('org/m',)

    Raises:
        ValueError: the key is not below the prefix.
    """
    if not key.startswith(under):
        raise ValueError(f"key {key!r} is not below {under!r}")
    return tuple(unquote(each) for each in key[len(under) :].split("/"))
