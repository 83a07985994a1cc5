"""One run of ``up``, from its options to its exit status: the composition root of the stack."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from llmgw_base.lifecycle import Stop
from llmgw_base.net import Listen
from llmgw_ctl.client import AdminClient
from llmgw_ctl.connection import Target, read_token
from llmgw_ctl.errors import BadInputError, CtlError, StoppedEarlyError
from llmgw_ctl.session import Session
from llmgw_ctl.up import etcd, hints, lock, ports, remembered
from llmgw_ctl.up.ask import ask, load_client, require_client
from llmgw_ctl.up.board import Board
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.models import Models
from llmgw_ctl.up.options import UpOptions
from llmgw_ctl.up.plan import Choices, local_url
from llmgw_ctl.up.probes import Probes
from llmgw_ctl.up.process import Reaper, become_subreaper
from llmgw_ctl.up.sample import wanted_specs
from llmgw_ctl.up.stack import Stack
from llmgw_ctl.up.tasks import all_of, give_up

T = TypeVar("T")


def run_up(options: UpOptions, session: Session) -> int:
    """Runs the stack until it is stopped, or until the question is answered; returns the exit status.

    Raises:
        CtlError: what is wrong is said in one line; everything that was started is stopped again.
    """
    # All that can be checked is checked before anything starts.
    specs = wanted_specs(options.sample, list(options.serve), Path.cwd())
    ports.parse(options.listen, "--listen")
    if options.admin_listen is not None:
        ports.parse(options.admin_listen, "--admin-listen")
    if options.ask is not None:
        require_client()
    program = etcd.find(options.etcd, session.environ)
    become_subreaper()
    return asyncio.run(_Run(options, session, specs, program).run())


class _Run:
    def __init__(
        self, options: UpOptions, session: Session, specs: Sequence[dict[str, Any]], program: etcd.EtcdProgram
    ) -> None:
        self._options = options
        self._session = session
        self._specs = specs
        self._etcd = program
        self._layout = Layout(options.state_dir)
        self._board = Board(session.terminal, session.clock, quiet=options.quiet)
        self._stop = Stop()
        self._stack: Stack | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        with lock.hold(self._layout):
            await self._run_locked()
        forced = self._stack is not None and self._stack.forced
        return StoppedEarlyError.exit_code if forced else 0

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.requested and self._stack is not None:
            self._board.warn("killing everything at once")
            self._stack.force()
        elif not self._stop.requested:
            self._stop.request(number.name)

    async def _run_locked(self) -> None:
        for name in await lock.clear(self._layout, self._session.clock):
            self._board.note(f"stopped {name}, left by an `up` that was killed")
        if self._etcd.warning:
            self._board.warn(self._etcd.warning)
        with ports.Claims() as claims, Reaper() as reaper:
            choices = self._choose(claims)
            async with Probes(self._layout, choices) as probes:
                self._stack = Stack(
                    self._layout,
                    choices,
                    reaper=reaper,
                    probes=probes,
                    board=self._board,
                    clock=self._session.clock,
                    environ=self._session.environ,
                )
                try:
                    await self._serve(self._stack, choices, probes)
                finally:
                    await self._stack.stop()

    def _choose(self, claims: ports.Claims) -> Choices:
        """Ports are claimed after the leftovers are gone, for they may have held them."""
        known = remembered.load(self._layout)
        router = claims.claim(ports.parse(self._options.listen, "--listen"), "--listen")
        admin = claims.claim_admin(self._options.admin_listen, known.get("admin_port"))
        node = remembered.node_name(known, self._layout.root)
        remembered.save(self._layout, {"node": node, "admin_port": admin.port})
        remembered.ensure_token(self._layout.token)
        agent = claims.claim(Listen("127.0.0.1", 0), "--listen")
        return Choices(self._etcd.path, sys.executable, node, router, admin, agent)

    async def _serve(self, stack: Stack, choices: Choices, probes: Probes) -> None:
        # Importing the client takes most of a second: it happens while the children start.
        importing = asyncio.to_thread(load_client) if self._options.ask is not None else asyncio.sleep(0)
        await self._unless_stopped(all_of(stack.start({"etcd": self._etcd.version}), importing))
        admin, router = local_url(choices.admin), local_url(choices.router)
        target = Target((admin,), "llmgwctl up", read_token(self._layout.token), str(self._layout.token))
        async with AdminClient(target) as client:
            models = Models(client, probes, self._board, self._session.clock)
            strict = self._options.ask is not None
            ready = await self._unless_stopped(models.bring_up(self._specs, self._options.timeout, strict=strict))
        stays = self._options.ask is None
        if not self._options.quiet:
            found = _is_found(self._session, admin)
            self._session.terminal.line(hints.summary(self._layout, router, admin, ready, stays=stays, found=found))
        if self._options.ask is not None:
            await self._unless_stopped(self._answer(self._options.ask, router, ready))
        else:
            await self._until_stopped(stack)

    async def _answer(self, question: str, router: str, ready: Sequence[str]) -> None:
        model = self._asked_model(ready)
        line = self._session.terminal.line
        if not self._options.quiet:
            line(f"{model} is asked: {question}\n")

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        answer = await ask(router, model, question, clock=self._session.clock, write=write)
        line()
        line()
        line(answer.describe())

    def _asked_model(self, ready: Sequence[str]) -> str:
        if self._specs:
            return str(self._specs[0]["name"])
        if len(ready) == 1:
            return ready[0]
        known = f"there are {len(ready)}: {', '.join(ready)}" if ready else "there is none"
        raise BadInputError(f"--ask does not know which model to ask; {known}", "add --sample or --serve NAME=SOURCE")

    async def _until_stopped(self, stack: Stack) -> None:
        waiting, ended = asyncio.create_task(self._stop.wait()), asyncio.create_task(stack.ended())
        try:
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            await give_up(waiting, ended)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises StoppedEarlyError when the stop is requested first."""
        task, waiting = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StoppedEarlyError(f"stopped by {waiting.result()} before it was done")
            return task.result()
        finally:
            await give_up(task, waiting)


def _is_found(session: Session, admin: str) -> bool:
    """Whether llmgwctl finds this stack, or the settings, the environment or another stack come first."""
    try:
        return session.target().servers == (admin,)
    except CtlError:
        return False
