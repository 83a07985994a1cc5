"""What is known of the store's endpoints, and which of those that vanished are still worth keeping. Pure.

A record that goes away while it says ``draining`` is gone. One that goes away without may be alive: its agent lost its lease,
the store lost its leases, the network between them broke. Such an endpoint is kept as *vanished*, for a bounded time and while
it answers probes, unless its replica turns up again somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmgw_base.secrets import engine_key
from llmgw_proto.records import ClusterRecord, EndpointRecord
from llmgw_router.errors import TableError
from llmgw_router.table.spec import EndpointSpec, from_record


@dataclass(frozen=True, slots=True)
class Vanished:
    record: EndpointRecord
    until: float
    """Monotonic."""


class Known:
    def __init__(self, keep_seconds: float) -> None:
        self._keep = keep_seconds
        self.cluster: ClusterRecord | None = None
        self.records: dict[str, EndpointRecord] = {}
        self.vanished: dict[str, Vanished] = {}
        self.problems: dict[str, str] = {}
        """Key to why its record cannot be used."""

    def put(self, key: str, record: EndpointRecord) -> None:
        self.records[key] = record
        self.problems.pop(key, None)
        for other in [each for each, gone in self.vanished.items() if gone.record.replica == record.replica]:
            del self.vanished[other]

    def deleted(self, key: str, now: float) -> bool:
        """Returns whether the endpoint is kept as vanished, so that it is to be probed."""
        record = self.records.pop(key, None)
        self.problems.pop(key, None)
        if record is None or record.draining or any(each.replica == record.replica for each in self.records.values()):
            return False
        self.vanished[key] = Vanished(record, now + self._keep)
        return True

    def dead(self, replica: str) -> bool:
        """A vanished replica does not answer. Returns whether it was known as vanished."""
        keys = [key for key, gone in self.vanished.items() if gone.record.replica == replica]
        for key in keys:
            del self.vanished[key]
        return bool(keys)

    def expire(self, now: float) -> bool:
        """Forgets those vanished for too long. Returns whether there were any."""
        keys = [key for key, gone in self.vanished.items() if gone.until <= now]
        for key in keys:
            del self.vanished[key]
        return bool(keys)

    def specs(self) -> Iterator[EndpointSpec]:
        """For the directory. Records that cannot be used are noted in ``problems`` and left out."""
        for key, record in self.records.items():
            spec = self._spec(key, record)
            if spec is not None:
                yield spec
        for key, gone in self.vanished.items():
            spec = self._spec(key, gone.record)
            if spec is not None:
                yield replace(spec, vanished=True)

    def _spec(self, key: str, record: EndpointRecord) -> EndpointSpec | None:
        secret = self.cluster.engine_secret if self.cluster is not None else None
        try:
            return from_record(record, engine_key(secret, record.replica, record.epoch) if secret else None)
        except (TableError, ValueError) as error:
            self.problems[key] = str(error)
            return None
