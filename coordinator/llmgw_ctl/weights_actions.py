"""What an operator does with weights: over one node or all, with progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from llmgw_ctl.errors import CtlError, NotFoundError
from llmgw_ctl.humanize import size
from llmgw_ctl.printable import printable
from llmgw_ctl.views.weights import fetch_line, verify_line

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session

#: Digits of a content's digest that name it.
_LEAST_DIGITS = 8
#: Seconds between two lines about one node where progress is not drawn.
_TOLD_EVERY = 5.0
#: Nodes that work at the same time.
_AT_ONCE = 16
Json = dict[str, Any]


async def look(client: AdminClient, node: str | None) -> Json:
    """``{"nodes": [...], "unreachable": [...]}``, of one node or all."""
    if node is None:
        return await client.weights()
    return {"nodes": [await client.node_weights(node)], "unreachable": []}


async def find(client: AdminClient, name: str, node: str | None) -> tuple[list[Json], Json]:
    """All copies of the weights of that name, each with its node, and what :func:`look` saw.

    Raises:
        NotFoundError: there are none, as far as nodes answered.
    """
    seen = await look(client, node)
    copies = matching(seen["nodes"], name)
    if not copies:
        silent = [each["node"] for each in seen["unreachable"]]
        unknown = f" ({', '.join(silent)} did not answer)" if silent else ""
        where = f"on node {node}" if node else "on any node"
        raise NotFoundError(f"there are no weights {name!r} {where}{unknown}", "see `llmgwctl weights list`")
    return copies, seen


def matching(nodes: Sequence[Json], name: str) -> list[Json]:
    """By source or key, else by the beginning of the content's digest. Pure."""
    every = [{"node": node.get("node", ""), **each} for node in nodes for each in node.get("weights", [])]
    exact = [each for each in every if name in (each.get("source"), each.get("key"))]
    if exact or len(name) < _LEAST_DIGITS:
        return exact
    begun = [each for each in every if str(each.get("content", "")).startswith(name)]
    if len({each["content"] for each in begun}) > 1:
        raise NotFoundError(f"the digests of several weights begin with {name!r}", "write more of it")
    return begun


def warn_of_silent(session: Session, seen: Json) -> None:
    for each in seen.get("unreachable", []):
        session.terminal.warn(f"node {each.get('node')} is left out: {each.get('cause')}")


def remove(session: Session, name: str, node: str | None) -> None:
    """Where it is refused, the others go on.

    Raises:
        CtlError: refused somewhere; the first of the refusals.
    """

    async def work(client: AdminClient) -> tuple[list[Json], list[tuple[str, CtlError]], Json]:
        copies, seen = await find(client, name, node)
        done: list[Json] = []
        refused: list[tuple[str, CtlError]] = []
        for each in copies:
            try:
                done.append({"node": each["node"], **await client.remove_weights(each["node"], each["key"])})
            except CtlError as error:
                refused.append((each["node"], error))
        return done, refused, seen

    done, refused, seen = session.call(work)
    if session.for_people:
        for each in done:
            session.terminal.line(f"{each['node']}: removed {', '.join(each['sources'])}, {size(each['freed_bytes'])} freed")
    else:
        session.data(done)
    warn_of_silent(session, seen)
    _raise_first(session, refused)


def verify(session: Session, name: str | None, node: str | None) -> None:
    """
    Raises:
        CtlError: files were wrong, or a node could not be asked.
    """

    async def plan(client: AdminClient) -> tuple[list[tuple[str, Json]], Json]:
        if name is None:
            seen = await look(client, node)
            return [(each["node"], {"weights": None}) for each in seen["nodes"] if each.get("weights")], seen
        copies, seen = await find(client, name, node)
        return [(each["node"], {"weights": each["key"]}) for each in copies], seen

    last, failed, seen = session.call(lambda client: _everywhere(session, client, plan, "verify", verify_line))
    if not session.for_people:
        session.data(last)
    for each in last:
        for wrong in each.get("wrong") or []:
            session.terminal.warn(f"{each['node']}: {wrong} was wrong and is removed")
    warn_of_silent(session, seen)
    _raise_first(session, failed)
    count = sum(len(each.get("wrong") or []) for each in last)
    if count:
        raise CtlError(
            f"{count} file{'s were' if count > 1 else ' was'} wrong",
            "they are fetched again when they are next needed; look at the disk, it loses data",
        )


def fetch(session: Session, source: str, nodes: Sequence[str]) -> None:
    """
    Raises:
        CtlError: a node could not fetch it; the others did.
    """

    async def plan(client: AdminClient) -> tuple[list[tuple[str, Json]], Json]:
        return [(node, {"source": source}) for node in dict.fromkeys(nodes)], {}

    last, failed, _ = session.call(lambda client: _everywhere(session, client, plan, "fetch", fetch_line))
    if not session.for_people:
        session.data(last)
    _raise_first(session, failed)


Plan = Callable[["AdminClient"], Any]


async def _everywhere(
    session: Session, client: AdminClient, plan: Plan, word: str, line: Callable[[Json], str]
) -> tuple[list[Json], list[tuple[str, CtlError]], Json]:
    """The last step of each node that was done, and what the others failed with."""
    wishes, seen = await plan(client)
    last: list[Json] = []
    failed: list[tuple[str, CtlError]] = []
    turns = asyncio.Semaphore(_AT_ONCE)
    with Steps(session, line) as steps:

        async def one(node: str, body: Json) -> None:
            async with turns:
                try:
                    last.append({"node": node, **await steps.follow(node, client.weights_steps(node, word, body))})
                except CtlError as error:
                    failed.append((node, error))

        async with asyncio.TaskGroup() as group:
            for node, body in wishes:
                group.create_task(one(node, body))
    return sorted(last, key=lambda each: str(each["node"])), failed, seen


class Steps:
    """Shows on stderr how far each node is: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, session: Session, line: Callable[[Json], str]) -> None:
        self._session, self._line = session, line
        self._lines: dict[str, str] = {}
        self._told: dict[str, float] = {}
        self._ends: list[str] = []
        """Printed when nothing moves any more: on a terminal both streams are in one place."""
        self._status = session.terminal.err.status("") if session.terminal.err.is_terminal else None

    def __enter__(self) -> Steps:
        if self._status is not None:
            self._status.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.__exit__(None, None, None)
        for line in sorted(self._ends):
            self._session.terminal.line(line)

    async def follow(self, node: str, steps: AsyncIterator[Json]) -> Json:
        """The last step."""
        last: Json = {}
        async for step in steps:
            last = step
            self._show(node, step)
        self._lines.pop(node, None)
        if self._session.for_people:
            self._ends.append(f"{node}: {self._line(last)}")
        return last

    def _show(self, node: str, step: Json) -> None:
        text = f"{node}: {self._line(step)}"
        now = self._session.clock.monotonic()
        if self._status is not None:
            self._lines[node] = text
            from rich.text import Text

            # As text, so that brackets in names are not taken for markup.
            self._status.update(Text("\n".join(printable(self._lines[each]) for each in sorted(self._lines))))
        elif now - self._told.get(node, 0.0) >= _TOLD_EVERY and step.get("path") is None and step.get("files") is None:
            self._told[node] = now
            self._session.terminal.note(text)


def _raise_first(session: Session, failed: Sequence[tuple[str, CtlError]]) -> None:
    """Says all, and ends with the first."""
    for node, error in failed[1:]:
        session.terminal.warn(f"{node}: {error.message}")
    if failed:
        raise failed[0][1]
