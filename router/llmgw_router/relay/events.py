"""Follows a stream of server-sent events: passes its bytes on, event by event, and reads the usage on the side. Pure.

Only whole events are passed on, so that a stream that breaks never leaves the client with half of one. What is passed on,
joined, is what came in, byte for byte; with ``withhold`` less the chunk that tells nothing but usage.
"""

from __future__ import annotations

import re

from llmgw_router.relay.usage import Usage

HOLD_LIMIT = 262_144
"""A part of an event that grows beyond this is passed on as it is."""
READ_LIMIT = 1_048_576
"""Larger events are not searched for usage."""

_END = re.compile(rb"\n\n|\r\n\r\n|\r\r|\n\r\n")
_USAGE = b'"usage"'
_NOTHING = re.compile(rb'"usage"\s*:\s*null')
_FIRST_ERROR = re.compile(
    rb'(?:event: ?error\r?\n)|(?:data: ?\{\s*"(?:error"\s*:\s*\{|type"\s*:\s*"error"|object"\s*:\s*"error"))'
)
_CLIENT_FAULT = re.compile(rb'"(?:code|status|status_code)"\s*:\s*"?4\d\d\b|"(?:type)"\s*:\s*"(?:invalid_request|BadRequest)')


def is_error(event: bytes) -> bool:
    """Whether a stream's first event is an error instead of the beginning of an answer."""
    return _FIRST_ERROR.match(event) is not None


def is_client_fault(event: bytes) -> bool:
    """Whether that error says that the request itself is wrong, so another replica would say the same."""
    return _CLIENT_FAULT.search(event) is not None


class EventStream:
    __slots__ = ("_counted", "_given", "_held", "_held_size", "_tail", "_uncounted", "_withhold", "ends_clean", "usage")

    def __init__(self, usage: Usage, *, withhold: bool) -> None:
        self.usage = usage
        self._counted = 0
        self._uncounted: list[bytes] = []
        """Passed on and not looked through yet: how many events came at once is seldom asked."""
        self.ends_clean = True
        """What was passed on ends where an event ends."""
        self._withhold = withhold
        self._held: list[bytes] = []
        self._held_size = 0
        self._tail = b""
        self._given = 0
        """Of what is held, these first bytes are passed on already."""

    @property
    def events(self) -> int:
        """Passed on so far, the withheld one not counted."""
        return self.count()

    def count(self) -> int:
        """Counts what is not counted yet, and lets go of it."""
        uncounted = self._uncounted
        if uncounted:
            self._counted += sum(map(_count, uncounted))
            uncounted.clear()
        return self._counted

    @property
    def holding(self) -> bool:
        return self._held_size > self._given

    def plain(self, data: bytes) -> bool:
        """Whether this is one event of one line that tells nothing of interest, as nearly all are. It is taken then, to be
        passed on as it is.
        """
        # A single byte is found faster than two, and from the end a word faster than from the beginning.
        if self._held_size or not data.endswith(b"\n\n") or data.find(b"\n") != len(data) - 2 or data.rfind(_USAGE) >= 0:
            return False
        self.ends_clean = True
        self._counted += 1
        return True

    def plain_chunk(self, data: bytes) -> int:
        """The size of the event, when this is one whole chunk of an HTTP body with a plain event in it, written as this router
        would write it. The event is taken then. Otherwise 0.
        """
        start = data.find(b"\n") + 1
        size = len(data) - start - 2
        if (
            size < 3
            or self._held_size
            or not data.startswith(b"%x\r\n" % size)
            or not data.endswith(b"\n\n\r\n")
            or data.find(b"\n", start) != len(data) - 4
            or data.rfind(_USAGE) >= 0
        ):
            return 0
        self.ends_clean = True
        self._counted += 1
        return size

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they come and returns those to pass on now, perhaps none."""
        if not self._held_size:
            if data.endswith(b"\n\n"):
                return self._pass(data)
            cut = _cut(data)
            if cut == 0:
                return self._hold(data)
            out, rest = data[:cut], data[cut:]
            given = 0
        else:
            # Only what is new can hold an event's end; three bytes before it may belong to that end.
            cut = _cut(self._tail + data) - len(self._tail)
            if cut <= 0:
                return self._hold(data)
            out, rest = b"".join([*self._held, data[:cut]]), data[cut:]
            given = self._given
            self._let_go()
        passed = self._pass(out)
        if given:
            passed = passed[given:]
        return passed + self._hold(rest) if rest else passed

    def hurry(self) -> bytes:
        """Gives out what has been held for too long already, without forgetting it. Not for a stream that withholds."""
        out = b"".join(self._held)[self._given :]
        self._given = self._held_size
        self.ends_clean = not self._given
        return out

    def flush(self) -> bytes:
        """Gives out what is held, whole or not, at the end of the answer."""
        out, given = b"".join(self._held), self._given
        self._let_go()
        if not out:
            return b""
        self.ends_clean = False
        return self._look(out)[given:]

    def _hold(self, data: bytes) -> bytes:
        self._held.append(data)
        self._held_size += len(data)
        self._tail = (self._tail + data)[-3:]
        return self.flush() if self._held_size > HOLD_LIMIT else b""

    def _let_go(self) -> None:
        self._held, self._held_size, self._tail, self._given = [], 0, b"", 0

    def _pass(self, out: bytes) -> bytes:
        self.ends_clean = True
        if self._uncounted:
            # At most one read's bytes are kept for it.
            self._counted = self.events
        self._uncounted.append(out)
        return self._look(out)

    def _look(self, out: bytes) -> bytes:
        """Reads the usage from the events that tell it, and takes out the one that the client did not ask for."""
        # From the end, where it nearly always is; a search in this direction takes half as long, too.
        at = out.rfind(_USAGE)
        if at < 0:
            return out
        found: list[tuple[int, int]] = []
        while at >= 0:
            if _NOTHING.match(out, at) is not None:
                at = out.rfind(_USAGE, 0, at)
                continue
            begin = _begin(out, at)
            end = _END.search(out, at)
            found.append((begin, end.end() if end is not None else len(out)))
            at = out.rfind(_USAGE, 0, begin)
        kept: list[bytes] = []
        start = 0
        """Of what is not in ``kept`` yet."""
        for begin, stop in reversed(found):
            if stop - begin <= READ_LIMIT and self.usage.read(data_of(out[begin:stop])) and self._withhold:
                self._counted -= 1
                kept.append(out[start:begin])
                start = stop
        if not kept:
            return out
        kept.append(out[start:])
        return b"".join(kept)


def _count(out: bytes) -> int:
    """How many whole events these are. A longer needle is found many times faster than two line feeds."""
    if b"\r" in out:
        return len(_END.findall(out))
    return 1 + out.count(b"\n\ndata:") + (out.count(b"\n\nevent:") if out.startswith(b"event:") else 0)


def _begin(out: bytes, at: int) -> int:
    """Where the event that holds ``at`` begins."""
    found = out.rfind(b"\n\n", 0, at)
    begin = 0 if found < 0 else found + 2
    return begin if b"\r" not in out else begin + _cut(out[begin:at])


def _cut(data: bytes) -> int:
    """Where the last whole event ends; 0 when none does."""
    if b"\r" not in data:
        return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
    cut = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3, data.rfind(b"\r\r") + 2)
    return cut if cut > 2 or data[:2] in (b"\n\n", b"\r\r") or data[:3] == b"\n\r\n" else 0


def data_of(event: bytes) -> bytes:
    """The joined ``data`` lines of one event."""
    lines = event.splitlines() if b"\r" in event else event.split(b"\n")
    values = [line[5:] for line in lines if line.startswith(b"data:")]
    return values[0] if len(values) == 1 else b"\n".join(values)
