"""Own writes that the watch has not shown yet. Planning before it has would decide the same things twice."""

from __future__ import annotations

import asyncio


class Expected:
    """Keys and the values (None: deleted) that the mirror is about to show."""

    def __init__(self) -> None:
        self._values: dict[str, bytes | None] = {}
        self._settled = asyncio.Event()
        self._settled.set()

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: str, value: bytes | None) -> None:
        """To be called before the write is sent, so that its echo cannot be missed."""
        self._values[key] = value
        self._settled.clear()

    def withdraw(self, key: str) -> None:
        """The write did not happen."""
        self._values.pop(key, None)
        self._check()

    def observe(self, key: str, value: bytes | None) -> None:
        if key in self._values and self._values[key] == value:
            self.withdraw(key)

    def outstanding(self) -> dict[str, bytes | None]:
        return dict(self._values)

    async def settled(self) -> None:
        await self._settled.wait()

    def _check(self) -> None:
        if not self._values:
            self._settled.set()
