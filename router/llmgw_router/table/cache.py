"""The last known table on disk, for a start while the store is away. It holds the cluster's engine secret, so mode 600."""

from __future__ import annotations

import json
import os
from pathlib import Path

from llmgw_proto.records import BadRecordError, ClusterRecord, EndpointRecord
from llmgw_router.table.known import Known

_NAME = "endpoints.json"


def save(directory: Path, cluster: ClusterRecord, records: dict[str, EndpointRecord], wall: float) -> None:
    """Writes it whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    data = {
        "saved_at": wall,
        "cluster": json.loads(cluster.encode()),
        "endpoints": {key: json.loads(record.encode()) for key, record in records.items()},
    }
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{_NAME}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _NAME)


def load(directory: Path, known: Known) -> float | None:
    """Fills ``known`` from it. Returns when it was saved (Unix time), or None when there is none that can be used."""
    try:
        data = json.loads((directory / _NAME).read_text(encoding="utf-8"))
        cluster = ClusterRecord.decode(json.dumps(data["cluster"]).encode())
        records = {str(key): EndpointRecord.decode(json.dumps(each).encode(), key) for key, each in data["endpoints"].items()}
        saved_at = float(data["saved_at"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadRecordError):
        return None
    known.cluster = cluster
    known.records = records
    return saved_at
