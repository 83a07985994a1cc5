"""Is this still the store that was known before? Pure.

An empty or strange answer must never be read as "delete all": a data folder that was wiped, a backup that was restored, or
an address that now leads to another cluster all look like a healthy store with other content.

=====================================================  =============================================================
seen in a list                                         why it cannot be the same store
=====================================================  =============================================================
another cluster id                                     the id is made when a cluster is
a revision below the one known                         lists are linearizable; a revision never goes back
a key last written before the known revision, which    what is known is complete up to its revision, so this write
is not known, or known with another mod_revision       belongs to another history
the cluster record has another create_revision         it is written once in the life of a cluster
nothing at all where there were keys, and the cluster  an ordinary prefix may become empty, the cluster record
record is gone too                                     never does
=====================================================  =============================================================

Members of one cluster that are started again with empty folders and the same flags get the *same* cluster id, and a
restored backup may too. So a store that was doubted is trusted again only on proof: it still has the history that is
known, see :func:`same_history`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgw_base.etcd.api import Snapshot
from llmgw_base.etcd.mirror import Mirror


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of the cluster record: its create_revision, 0 if absent, None if it could not be read (or not yet)."""

    create_revision: int | None = None

    def learn(self, seen: Record) -> Record:
        """What to remember after ``seen``, which was not in doubt."""
        return seen if seen.create_revision else self


def doubt(mirror: Mirror, record: Record, snapshot: Snapshot, seen: Record) -> str | None:
    """The reason to freeze, or None. ``mirror`` and ``record`` are what is known, ``snapshot`` and ``seen`` what was read."""
    if mirror.cluster_id is None:
        return None
    if snapshot.cluster_id != mirror.cluster_id:
        return f"the cluster id was {mirror.cluster_id:x} and is now {snapshot.cluster_id:x}: this is another etcd cluster"
    if snapshot.revision < mirror.revision:
        return (
            f"the revision went back from {mirror.revision} to {snapshot.revision}: "
            "the data was wiped, or restored from an older backup"
        )
    for item in snapshot.items:
        if item.mod_revision <= mirror.revision:
            known = mirror.items.get(item.key)
            if known is None or known.mod_revision != item.mod_revision:
                return (
                    f"key {item.key} was written at revision {item.mod_revision}, which is not what was seen at that "
                    "revision: the data was wiped, or restored from a backup"
                )
    return doubt_record(record, seen, emptied=bool(mirror.items) and not snapshot.items)


def doubt_record(record: Record, seen: Record, *, emptied: bool) -> str | None:
    """The part of :func:`doubt` that concerns the cluster record; ``emptied``: all keys known under the prefix are gone."""
    if not record.create_revision or seen.create_revision is None:
        return None
    if seen.create_revision == 0:
        return "all keys are gone at once, and the cluster record with them" if emptied else None
    if seen.create_revision != record.create_revision:
        return (
            f"the cluster record was created at revision {record.create_revision} and is now one of revision "
            f"{seen.create_revision}: the store was emptied and set up anew"
        )
    return None


def same_history(mirror: Mirror, then: Snapshot) -> bool:
    """Whether ``then``, the prefix as the store has it *at* ``mirror.revision``, is what the mirror knows of that time."""
    return {item.key: item.mod_revision for item in then.items} == {
        item.key: item.mod_revision for item in mirror.items.values()
    }
