"""One kind of record of the mirror."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from llmgw_base.etcd.api import Put
from llmgw_coordinator.state.view import Stored
from llmgw_proto.records import BadRecordError, Record

K = TypeVar("K")
R = TypeVar("R", bound=Record)

logger = logging.getLogger(__name__)


class Table(Generic[K, R]):
    """Rows by what their key names. A value that cannot be read leaves the row as it was and is reported in ``bad``."""

    def __init__(self, record: type[R], name: Callable[[str], K | None]) -> None:
        """
        Args:
            name: what a key names; None for keys that belong to another table or another version.
        """
        self._record = record
        self._name = name
        self.rows: dict[K, Stored[R]] = {}
        self.bad: dict[K, str] = {}
        self.present: set[K] = set()

    def put(self, change: Put) -> bool:
        """Returns whether the key is of this table."""
        name = self._name(change.key)
        if name is None:
            return False
        self.present.add(name)
        try:
            record = self._record.decode(change.value, change.key)
        except BadRecordError as error:
            self.bad[name] = str(error)
            known = self.rows.get(name)
            if known is not None:
                self.rows[name] = Stored(known.record, change.create_revision, change.mod_revision)
            logger.warning(
                "a record cannot be read; what was known of it before stays in force",
                extra={"fields": {"key": change.key, "cause": str(error)}},
            )
            return True
        self.bad.pop(name, None)
        self.rows[name] = Stored(record, change.create_revision, change.mod_revision)
        return True

    def delete(self, key: str) -> bool:
        """Returns whether the key is of this table."""
        name = self._name(key)
        if name is None:
            return False
        self.present.discard(name)
        self.rows.pop(name, None)
        self.bad.pop(name, None)
        return True
