"""Keys derived from the cluster secret, so that none of them needs to be stored or sent through etcd.

The secret is ``ClusterRecord.engine_secret`` (64 hex characters).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets


def new_cluster_secret() -> str:
    return secrets.token_hex(32)


def engine_key(cluster_secret: str, replica: str, epoch: int) -> str:
    """The API key that the engine of this replica demands and that routers send; a new epoch has a new key."""
    return "lg-" + _derive(cluster_secret, f"engine/{replica}/{epoch}")


def agent_token(cluster_secret: str, node: str) -> str:
    """The bearer token for the gRPC service of this node's agent."""
    return _derive(cluster_secret, f"agent/{node}")


def weights_token(cluster_secret: str, node: str) -> str:
    """The bearer token with which agents fetch weights from this node's agent; it opens nothing else."""
    return _derive(cluster_secret, f"weights/{node}")


def _derive(cluster_secret: str, purpose: str) -> str:
    return hmac.new(bytes.fromhex(cluster_secret), purpose.encode(), hashlib.sha256).hexdigest()[:40]
