"""What a watch knows of its prefix, and what a list or an event changes in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgw_base.etcd.api import Change, Deleted, KeyValue, Put, Snapshot


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a watch stream; ``value`` is None when the key was deleted (and then only ``mod_revision`` counts)."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int = 0
    lease: int = 0


class Mirror:
    """The keys of one prefix as of ``revision``, complete: every change up to it has been applied.

    A key that was written again with the same value is no change. A key that was deleted and created again with the same
    value while nobody looked is one (``previous`` equals ``value``): an election lives by create_revisions.
    """

    def __init__(self) -> None:
        self.items: dict[str, KeyValue] = {}
        self.revision = 0
        self.cluster_id: int | None = None

    def take_list(self, snapshot: Snapshot) -> list[Change]:
        """Becomes equal to ``snapshot``; the changes are deletions first, then puts in the order in which they happened."""
        listed = {item.key: item for item in snapshot.items}
        changes: list[Change] = [Deleted(key, gone.value) for key, gone in sorted(self.items.items()) if key not in listed]
        for item in sorted(snapshot.items, key=lambda each: (each.mod_revision, each.key)):
            changes.extend(_difference(self.items.get(item.key), item))
        self.items = listed
        self.revision = snapshot.revision
        self.cluster_id = snapshot.cluster_id
        return changes

    def take_events(self, events: Iterable[Event]) -> list[Change]:
        """Applies what is newer than ``revision``, in order."""
        changes: list[Change] = []
        known_until = self.revision
        for event in events:
            if event.mod_revision <= known_until:
                continue
            self.revision = max(self.revision, event.mod_revision)
            known = self.items.get(event.key)
            if event.value is None:
                if known is not None:
                    del self.items[event.key]
                    changes.append(Deleted(event.key, known.value))
                continue
            item = KeyValue(event.key, event.value, event.create_revision, event.mod_revision, event.lease)
            self.items[event.key] = item
            changes.extend(_difference(known, item))
        return changes

    def emptied_by(self, events: Sequence[Event]) -> bool:
        """Whether nothing would be left of what is known, though something is known now."""
        left = set(self.items)
        for event in events:
            if event.value is None:
                left.discard(event.key)
            else:
                left.add(event.key)
        return bool(self.items) and not left


def _difference(known: KeyValue | None, item: KeyValue) -> list[Change]:
    if known is not None and known.value == item.value and known.create_revision == item.create_revision:
        return []
    previous = known.value if known is not None else None
    return [Put(item.key, item.value, item.mod_revision, previous, item.create_revision)]
