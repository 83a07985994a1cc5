"""This node's part in a replica over several nodes: says where it stands, waits for the others, and tells when it is over.

Owned by a runner, which asks it at each of its own steps. For a replica on one node there is :class:`Alone`, which has
nothing to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol

from llmgw_agent.engines.base import Driver, Gang, Member
from llmgw_agent.errors import AttemptError, GangOverError, RejectedError
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.gang.decide import HEAD_RANK, RUNNING, End, Own, Peer, Run, Start, Step, Wait, decide, describe
from llmgw_agent.shard.gang.link import check_links
from llmgw_agent.shard.gang.peers import Peers
from llmgw_agent.shard.ledger import Ledger
from llmgw_proto.records import AssignmentRecord, GangPhase, GangState, ShardState

Say = Callable[[str], None]
#: How long an adopted engine waits to hear of the others before it is taken for what it was.
KNOWN_WITHIN = 2.0
#: A member that is down explains itself once its processes are gone and its log is read.
EXPLAINED_WITHIN = 5.0
LISTENING = frozenset({GangPhase.READY})


class Part(Protocol):
    """What a runner asks."""

    @property
    def paces(self) -> bool:
        """Whether this node decides when to try again; else another one does."""
        ...

    def following(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hears of the others for as long as the block lasts."""
        ...

    def adopted(self, *, runs: bool, ended: bool = False) -> None:
        """At the agent's start: whether the engine of before still runs; ``ended``: it did not, and why follows."""
        ...

    def preparing(self) -> None: ...

    async def assemble(self, driver: Driver, say: Say) -> Gang | None:
        """Nothing of an earlier attempt is left here. Returns when the engine is to be started, with whom.

        Raises:
            AttemptError, RejectedError: it cannot be.
        """
        ...

    def started(self, gang: Gang) -> None:
        """The next thing is the start of the process."""
        ...

    def ready(self) -> None:
        """This member does its part."""
        ...

    def down(self, note: str) -> None:
        """This member's engine ended, or must. ``note`` may be empty until it is known why."""
        ...

    def ended(self) -> None:
        """Nothing of the attempt is left here."""
        ...

    async def until_known(self) -> None:
        """For an adopted engine: returns when the others were heard of, or after a moment.

        Raises:
            GangOverError: they are not in its attempt any more.
        """
        ...

    async def until_joined(self) -> None:
        """For the head: returns when the others have begun as well.

        Raises:
            AttemptError: they have not in time.
        """
        ...

    async def until_ready(self) -> None:
        """For a worker: returns when the head serves."""
        ...

    async def until_dismissed(self, limit: float) -> None:
        """For a worker that is to end: returns when the head needs it no more, or after ``limit`` seconds."""
        ...

    async def watch(self) -> None:
        """Returns never. Raises GangOverError when the attempt is over because of another member."""
        ...

    async def explain(self, over: GangOverError) -> AttemptError | RejectedError:
        """Why it was over, once that is known."""
        ...


class Alone:
    """The part in a replica on one node."""

    paces = True

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        yield

    def adopted(self, *, runs: bool, ended: bool = False) -> None:
        pass

    def preparing(self) -> None:
        pass

    async def assemble(self, driver: Driver, say: Say) -> Gang | None:
        return None

    def started(self, gang: Gang) -> None:
        pass

    def ready(self) -> None:
        pass

    def down(self, note: str) -> None:
        pass

    def ended(self) -> None:
        pass

    async def until_known(self) -> None:
        pass

    async def until_joined(self) -> None:
        pass

    async def until_ready(self) -> None:
        pass

    async def until_dismissed(self, limit: float) -> None:
        pass

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def explain(self, over: GangOverError) -> AttemptError | RejectedError:
        return over


class Membership:
    """The part in a replica over several nodes; the rank tells which."""

    def __init__(self, context: Context, ledger: Ledger) -> None:
        self._context, self._ledger = context, ledger
        wish = ledger.wish
        self._rank = wish.rank
        self._leads = wish.rank == HEAD_RANK
        others = range(1, len(wish.peers)) if self._leads else (HEAD_RANK,)
        self._peers = Peers(
            context.store, context.clock, context.objection, wish.replica, {rank: wish.peers[rank] for rank in others}
        )
        self._joined: set[int] = set()
        if ledger.saved.gang is None:
            self._say(GangState(address=self._address))

    # --- what it says of itself ---------------------------------------------------------------------------------------

    def adopted(self, *, runs: bool, ended: bool = False) -> None:
        port = self._ledger.saved.meeting_port
        if runs and port:
            self._context.ports.hold(port)
        elif not runs and self._state.phase in RUNNING:
            gone = "its engine was gone when its agent started, as after a reboot."
            self._change(phase=GangPhase.DOWN, port=0, note="" if ended else gone)

    def preparing(self) -> None:
        self.ended()
        self._change(phase=GangPhase.PREPARING, port=0, address=self._address)

    def started(self, gang: Gang) -> None:
        self._change(attempt=gang.attempt, phase=GangPhase.STARTED, port=gang.own.port, note="")

    def ready(self) -> None:
        self._change(phase=GangPhase.READY)

    def down(self, note: str) -> None:
        if self._state.phase in RUNNING or self._state.phase is GangPhase.DOWN:
            self._change(phase=GangPhase.DOWN, note=note)

    def ended(self) -> None:
        if port := self._ledger.saved.meeting_port:
            self._context.ports.give_back(port)
            self._ledger.change(meeting_port=0)

    @property
    def paces(self) -> bool:
        return self._leads or self._state.phase is not GangPhase.DOWN

    # --- the start ----------------------------------------------------------------------------------------------------

    async def assemble(self, driver: Driver, say: Say) -> Gang:
        self._change(phase=GangPhase.PREPARED, address=self._address, port=0)
        self._joined.clear()
        return await self._lead(driver, say) if self._leads else await self._accompany(say)

    async def _lead(self, driver: Driver, say: Say) -> Gang:
        context, wish = self._context, self._wish
        attempt = await self._gather(say)
        if context.config.engines.gang.link_test:
            say(f"tests the links to {', '.join(peer.node for peer in self._peers.all)}")
            await check_links(context, self._address, {peer.node: _address(peer) for peer in self._peers.all})
        listens = driver.worker_listens(wish)
        port = 0 if listens else context.ports.take()
        head = Member(context.node, self._address, port)
        self._ledger.change(meeting_port=port)
        self.started(Gang(HEAD_RANK, attempt, (head,)))
        if listens:
            await self._until_all(LISTENING, "listen", say)
        return Gang(HEAD_RANK, attempt, (head, *(Member(each.node, _address(each), _port(each)) for each in self._peers.all)))

    async def _gather(self, say: Say) -> int:
        """The number of the attempt that may begin."""
        clock, limit = self._context.clock, self._context.config.engines.gang.wait_seconds
        heard: tuple[object, ...] = ()
        since = clock.monotonic()
        while True:
            step = self._decide()
            if isinstance(step, Start):
                return step.attempt
            if isinstance(step, End):
                raise (RejectedError if step.final else AttemptError)(step.reason)
            reason = _reason(step)
            say(reason)
            if (news := tuple(_progress(peer) for peer in self._peers.all)) != heard:
                heard, since = news, clock.monotonic()
            waited = clock.monotonic() - since
            if waited >= limit:
                raise AttemptError(
                    f"it {reason}, and nothing new was heard for {limit:g} s: see whether the agent there runs, and what "
                    "`llmgwctl replica list` and its log say."
                )
            await self._peers.news(limit - waited)

    async def _until_all(self, phases: Collection[GangPhase], what: str, say: Say = lambda _: None) -> None:
        """Waits until all others are in one of these phases: those of a Run that has joined, or is ready."""
        clock, limit, attempt = self._context.clock, self._context.config.engines.start_seconds, self._state.attempt
        deadline = clock.monotonic() + limit
        while True:
            step = self._checked()
            if isinstance(step, Run) and (step.ready if phases == LISTENING else step.joined):
                return
            late = [peer for peer in self._peers.all if _gang(peer).attempt != attempt or _gang(peer).phase not in phases]
            names = ", ".join(map(describe, late))
            say(f"attempt {attempt} waits for the engine on {names} to {what}")
            if clock.monotonic() >= deadline:
                raise AttemptError(f"the engine on {names} did not {what} within {limit:g} s; look at its log.")
            await self._peers.news(deadline - clock.monotonic())

    async def _accompany(self, say: Say) -> Gang:
        while True:
            step = self._decide()
            if isinstance(step, Start):
                break
            say(_reason(step))
            await self._peers.news()
        head, peers = self._peers[HEAD_RANK], self._wish.peers
        # Workers meet at the head, so a worker follows nobody else and does not know where the others are.
        members = [Member(node, "", 0) for node in peers]
        members[HEAD_RANK] = Member(peers[HEAD_RANK], _address(head), _port(head))
        members[self._rank] = Member(self._context.node, self._address, 0)
        return Gang(self._rank, step.attempt, tuple(members))

    # --- while it runs ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with self._peers.following():
            yield

    async def until_known(self) -> None:
        clock = self._context.clock
        deadline = clock.monotonic() + KNOWN_WITHIN
        while not self._peers.known and clock.monotonic() < deadline:
            await self._peers.news(deadline - clock.monotonic())
        self._checked()

    async def until_joined(self) -> None:
        if self._state.phase is GangPhase.STARTED:
            await self._until_all(RUNNING, "start")

    async def until_ready(self) -> None:
        while True:
            step = self._checked()
            if isinstance(step, Run) and step.ready:
                return
            await self._peers.news()

    async def until_dismissed(self, limit: float) -> None:
        if self._leads or self._state.phase not in RUNNING:
            return
        clock = self._context.clock
        deadline = clock.monotonic() + limit
        while clock.monotonic() < deadline and not isinstance(self._decide(), End):
            await self._peers.news(deadline - clock.monotonic())

    async def watch(self) -> None:
        while True:
            self._checked()
            await self._peers.news()

    async def explain(self, over: GangOverError) -> AttemptError | RejectedError:
        """The present attempt was ended here meanwhile. Waits a little for the other member's own words."""
        if over.rank == self._rank or not self._leads:
            return over
        clock = self._context.clock
        deadline = clock.monotonic() + self._context.config.engines.stop_seconds + EXPLAINED_WITHIN
        while True:
            record = self._peers[over.rank].record
            if record is not None and record.state is ShardState.REJECTED:
                return RejectedError(f"node {record.node}: {record.reason}")
            said = record.gang if record is not None else None
            if record is None or said is None or said.note or said.phase is not GangPhase.DOWN:
                note = said.note if said is not None else ""
                return AttemptError(f"node {record.node}: {note}" if record is not None and note else str(over))
            if clock.monotonic() >= deadline:
                return over
            await self._peers.news(deadline - clock.monotonic())

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _wish(self) -> AssignmentRecord:
        return self._ledger.wish

    @property
    def _state(self) -> GangState:
        return self._ledger.saved.gang or GangState(address=self._address)

    @property
    def _address(self) -> str:
        return self._context.config.gang_address

    def _change(self, **fields: object) -> None:
        self._say(self._state.model_copy(update=fields))

    def _say(self, state: GangState) -> None:
        if state != self._ledger.saved.gang:
            self._ledger.change(gang=state)
            self._ledger.publish()

    def _decide(self) -> Step:
        state, wish = self._state, self._wish
        if state.phase in RUNNING:
            self._joined |= {peer.rank for peer in self._peers.all if _runs(peer, state.attempt)}
        return decide(Own(self._rank, wish.epoch, wish.generation, state), self._peers.all, self._joined)

    def _checked(self) -> Step:
        """Raises GangOverError if the attempt is over."""
        if self._state.phase not in RUNNING:
            # The agent was killed while it ended the engine.
            raise GangOverError(f"attempt {self._state.attempt} was being ended.", self._rank)
        step = self._decide()
        if isinstance(step, End):
            ended = "" if self._leads else f"attempt {self._state.attempt} was ended: "
            raise GangOverError(f"{ended}{step.reason}", step.rank)
        return step


def make_part(context: Context, ledger: Ledger) -> Part:
    return Membership(context, ledger) if ledger.wish.peers else Alone()


def _reason(step: Step) -> str:
    return step.reason if isinstance(step, Wait | End) else ""


def _gang(peer: Peer) -> GangState:
    return peer.record.gang if peer.record is not None and peer.record.gang is not None else GangState()


def _address(peer: Peer) -> str:
    return _gang(peer).address


def _port(peer: Peer) -> int:
    return _gang(peer).port


def _runs(peer: Peer, attempt: int) -> bool:
    return _gang(peer).attempt == attempt and _gang(peer).phase in RUNNING


def _progress(peer: Peer) -> object:
    """Differs when something new was heard."""
    record = peer.record
    return None if record is None else (record.epoch, record.state, record.reason, record.gang)
