"""The store of model weights on one node. See the package's docstring for what it promises."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from llmgw_base.clock import Clock
from llmgw_proto.digests import Digest

from . import facts as metadata
from .catalog import Catalog, LocalRecord
from .client import Client, Target
from .disk import FULL, free_bytes, no_space
from .download import Downloader, Place
from .early import Judge, first_gguf, watch_header
from .errors import (
    DiskError,
    InUseError,
    MetadataError,
    NoSpaceError,
    SourceInvalidError,
    SourceNotFoundError,
    UnloadableError,
    WeightsError,
)
from .guard import Guard, Resolve, system_resolve
from .job import Job
from .layout import Layout
from .locks import held
from .manifest import Manifest
from .metrics import Traffic
from .model_facts import ModelFacts
from .peers import Peer, PeerSource, Sharing, Turn, blob_url
from .proxy import Proxy
from .receive import Fetched, FileWish, Meter, givers_of
from .resolve import Plan, PlannedFile, Resolver, to_manifest
from .settings import WeightsSettings
from .sources import FileSource, HubSource, UrlSource, parse_source, shown, source_key
from .views import Preflight, Progress, Stored, Weights

_P = ParamSpec("_P")
_T = TypeVar("_T")
_REPORT_SECONDS: Final = 0.25


class WeightStore:
    """Owns its download tasks and worker threads: use as an async context manager, or call :meth:`close`."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        settings: WeightsSettings,
        peers: PeerSource | None = None,
        resolve: Resolve = system_resolve,
    ) -> None:
        """Creates the folders under ``root``. Raises OSError."""
        self._layout = Layout(root)
        self._layout.create()
        self._clock = clock
        self._settings = settings
        self._peers = peers
        self._catalog = Catalog(self._layout, settings, clock)
        trusted = [settings.hub_endpoint, *([settings.mirror] if settings.mirror is not None else [])]
        guard = Guard(settings.allow_networks, trusted, resolve)
        tls = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file is not None else None)
        self._client = Client(
            guard,
            connect_seconds=settings.connect_seconds,
            idle_seconds=settings.idle_seconds,
            tls=tls,
            proxy=Proxy.read(settings.proxy, settings.no_proxy) if settings.proxy is not None else None,
        )
        self._resolver = Resolver(self._client, settings)
        self.traffic = Traffic()
        self._executor = ThreadPoolExecutor(settings.parallel_files + 4, thread_name_prefix="weights")
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._downloader = Downloader(self._client, self._layout, settings, clock, self._executor, boot_id, self.traffic)
        self._slots = asyncio.Semaphore(settings.parallel_files)
        self._jobs: dict[str, Job] = {}
        self._sharing: dict[str, list[Job]] = {}

    async def __aenter__(self) -> WeightStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops downloads (they can be continued) and ends the worker threads."""
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=True)

    # -- having weights

    async def ensure(
        self,
        source: str,
        *,
        progress: Callable[[Progress], None] = lambda _: None,
        pin: str | None = None,
        refresh: bool = False,
        judge: Judge | None = None,
    ) -> Weights:
        """Makes the weights be here, whole and verified; ``pin`` names who runs them, before anyone could evict them.

        What was fetched once is used without asking the network; ``refresh`` asks anew what a branch or URL means now.
        ``judge`` says of a GGUF's header why it cannot be loaded here; it is asked as soon as that has come.
        ``progress`` is called in the event loop four times a second and at the end. Cancelling leaves what came so far.

        Raises any WeightsError; ``recoverable`` of the error says whether a later try can succeed.
        """
        parsed = parse_source(source)
        if isinstance(parsed, FileSource):
            return await self._in_place(parsed)
        key = source_key(parsed.canonical)
        while True:
            job = self._jobs.get(key)
            if job is None or job.task.done():
                job = self._jobs[key] = Job(judge)
                job.task = asyncio.create_task(self._named(self._make_ready(job, parsed, key, refresh)), name=f"weights {key}")
                job.task.add_done_callback(partial(self._ended, key, job))
            try:
                return await self._wait_for(job, parsed.canonical, key, progress, pin)
            except UnloadableError:
                if job.judge is judge:
                    raise
                # Whoever came first cannot load it; that says nothing of this one's engine.

    async def _wait_for(
        self, job: Job, source: str, key: str, progress: Callable[[Progress], None], pin: str | None
    ) -> Weights:
        job.waiters += 1
        pinned = False
        try:
            if pin is not None:
                pinned = await self._work(self._catalog.pin, key, pin)
            await self._report(job, source, progress)
            return await asyncio.shield(job.task)
        except BaseException:
            if pinned and pin is not None:
                self._catalog.release(key, pin)
            raise
        finally:
            job.waiters -= 1
            if job.waiters == 0 and not job.task.done():
                self._forget(key, job)  # whoever comes now must not wait for what ends
                job.task.cancel()
                await asyncio.wait({job.task})

    def _ended(self, key: str, job: Job, _: asyncio.Task[Weights]) -> None:
        self._forget(key, job)

    def _forget(self, key: str, job: Job) -> None:
        if self._jobs.get(key) is job:
            del self._jobs[key]

    async def _report(self, job: Job, source: str, progress: Callable[[Progress], None]) -> None:
        last_time, last_bytes = self._clock.monotonic(), 0
        while not job.task.done():
            timer = asyncio.ensure_future(self._clock.sleep(_REPORT_SECONDS))
            try:
                await asyncio.wait({job.task, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
            now, fetched = self._clock.monotonic(), sum(each.fetched for each in job.meters.values())
            rate = (fetched - last_bytes) / (now - last_time) if now > last_time else 0.0
            last_time, last_bytes = now, fetched
            progress(job.snapshot(source, rate))

    async def _make_ready(self, job: Job, source: UrlSource | HubSource, key: str, refresh: bool) -> Weights:
        def look() -> None:
            job.meters = {name: Meter(on_disk=size) for name, size in self._catalog.under_way(key).items()}

        async with held(self._layout.lock(key), self._clock, waiting=look):
            job.meters = {}
            found = await self._work(self._catalog.find, key)
            if found is not None and not refresh and await self._work(self._catalog.complete, key, *found):
                await self._work(self._catalog.touch, key, found[1])
            else:
                job.phase = "resolving"
                found = await self._fetch(job, source, key, found)
            manifest = found[0]
            job.meters = job.meters or {each.path: Meter(total=each.size, on_disk=each.size) for each in manifest.files}
            job.phase = "ready"
            return await self._work(self._describe, key, manifest)

    async def _fetch(
        self, job: Job, source: UrlSource | HubSource, key: str, known: tuple[Manifest, LocalRecord] | None
    ) -> tuple[Manifest, LocalRecord]:
        plan = await self._work(self._resolver.plan, source)
        if known is not None and self._catalog.owners(key) and _changes(plan, known[0]):
            raise InUseError(
                f"{shown(source.canonical)} is now {plan.revision}, but what was fetched before is in use; "
                "name the revision in the source to have both, or stop what uses it"
            )
        digests = [each.wish.digest for each in plan.files if each.wish.digest is not None]
        await self._work(self._catalog.want, key, digests, [each.wish.part for each in plan.files])
        job.meters = {each.wish.path: Meter(total=each.wish.size) for each in plan.files}
        needed = await self._work(self._still_needed, plan, known[1] if known is not None else None)
        if await self._work(self._catalog.make_room, key, shown(plan.source), needed):
            self._tell_peers()
        job.phase = "fetching"
        results: dict[str, tuple[Digest, int]] = {}

        async def one(file: PlannedFile) -> None:
            results[file.wish.path] = await self._fetch_file(key, file, job.meters[file.wish.path], job.turn)

        async with self._turn(job, plan):
            try:
                async with asyncio.TaskGroup() as judging:
                    early = judging.create_task(self._judge_early(job, plan))
                    async with asyncio.TaskGroup() as group:
                        for file in plan.files:
                            group.create_task(one(file))
                    early.cancel()
            except BaseExceptionGroup as failures:
                raise _first(failures) from None
            manifest = to_manifest(plan, {each.wish.path: results[each.wish.path] for each in plan.files})
            return manifest, await self._work(self._catalog.commit, key, manifest)

    async def _judge_early(self, job: Job, plan: Plan) -> None:
        """Only by what came from the source or the mirror: a peer's bytes are not believed before they are verified."""
        if job.judge is None:
            return
        paths = [each.wish.path for each in plan.files]
        if (name := first_gguf(paths)) is None:
            if any(each.endswith(".safetensors") for each in paths) and (
                problem := await self._work(job.judge, ModelFacts(format="safetensors"))
            ):
                raise UnloadableError(f"{shown(plan.source)}: {problem}")
            return
        file = next(each for each in plan.files if each.wish.path == name)
        places = {str(each.target) for each in file.places}
        part, state = self._layout.part(file.wish.part), self._layout.part_state(file.wish.part)

        def trusted() -> bool:
            givers = givers_of(state)
            return bool(givers) and places.issuperset(givers)

        await watch_header(shown(plan.source), part, job.judge, trusted, self._clock, self._work)

    @contextlib.asynccontextmanager
    async def _turn(self, job: Job, plan: Plan) -> AsyncIterator[None]:
        """This node's place among those that fetch the same content, if there are others and the content is known."""
        content = plan.content
        if self._peers is None or content is None:
            yield
            self._tell_peers()
            return
        job.digests = [each.wish.digest for each in plan.files if each.wish.digest is not None]
        self._sharing.setdefault(content, []).append(job)
        try:
            async with self._peers.turn(content, lambda: sum(each.work for each in list(job.meters.values()))) as job.turn:
                yield
        finally:
            job.turn = None
            self._sharing[content].remove(job)
            if not self._sharing[content]:
                del self._sharing[content]
            self._tell_peers()

    async def _fetch_file(self, key: str, file: PlannedFile, meter: Meter, turn: Turn | None) -> tuple[Digest, int]:
        wish = file.wish

        def look() -> None:
            meter.on_disk = max(meter.on_disk, _size(self._layout.part(wish.part)))

        async with held(self._layout.lock(wish.part), self._clock, waiting=look):
            if wish.digest is not None and (blob := self._layout.blob(wish.digest)).exists():
                meter.total = meter.on_disk = _size(blob)
                return wish.digest, meter.on_disk
            fetched = await self._from_peers(wish, meter, turn) if turn is not None and wish.digest is not None else None
            if fetched is None:
                async with self._slots:
                    fetched = await self._downloader.fetch(wish, file.places, meter)
            await self._work(self._catalog.adopt, key, wish, fetched)
            meter.total = meter.on_disk = fetched.size
            meter.verifying = False
            return fetched.digest, fetched.size

    async def _from_peers(self, wish: FileWish, meter: Meter, turn: Turn) -> Fetched | None:
        """Until it is here, or it is this node's turn to ask the source: then None."""
        digest = wish.digest
        assert digest is not None, "what has no digest is not asked of peers"

        def place(peer: Peer) -> Place:
            target = Target(blob_url(peer.base_url, digest), peer.headers, trusted=True, tls=peer.tls)
            return Place(
                target, optional=True, left=lambda error: turn.left(peer, str(digest), error), hurried=True, kind="peer"
            )

        while peers := await turn.peers(str(digest)):
            async with self._slots:
                try:
                    return await self._downloader.fetch(wish, [place(each) for each in peers], meter)
                except (NoSpaceError, DiskError):
                    raise
                except WeightsError:
                    continue  # each of them was told to the turn
        return None

    def _tell_peers(self) -> None:
        if self._peers is not None:
            self._peers.changed()

    async def sharing(self, content: str) -> Sharing | None:
        """How far this node is with a content that it fetches now; None when it does not."""
        jobs = self._sharing.get(content)
        return await self._work(self._share, jobs[0]) if jobs else None

    def _share(self, job: Job) -> Sharing:
        ready = tuple(str(each) for each in job.digests if self._layout.blob(each).exists())
        return Sharing(sum(each.work for each in list(job.meters.values())), ready)

    async def contents(self) -> Sequence[str]:
        """The contents that are here whole, what was used last first."""
        return await self._work(self._catalog.contents)

    def _still_needed(self, plan: Plan, record: LocalRecord | None) -> int:
        """Bytes to fetch, less what unfinished downloads already have. Blocking."""
        manifest = [each.wish for each in plan.files]
        needed = 0
        for wish in manifest:
            if wish.size is None:
                continue
            if wish.digest is not None:
                one = to_manifest(Plan(plan.source, None, True, [PlannedFile(wish, [])]), {wish.path: (wish.digest, wish.size)})
                if not self._catalog.missing(one, record):
                    continue
            needed += max(0, wish.size - _size(self._layout.part(wish.part)))
        return needed

    # -- in place

    async def _in_place(self, source: FileSource) -> Weights:
        key = source_key(source.canonical)
        return await self._work(self._describe_in_place, source, key)

    def _describe_in_place(self, source: FileSource, key: str) -> Weights:
        try:
            files = metadata.local_files(source.path)
        except FileNotFoundError:
            raise SourceNotFoundError(
                f"{source.path} does not exist on this node; copy the weights there, mount the share, or correct the source"
            ) from None
        except OSError as error:
            raise SourceNotFoundError(f"{source.path} cannot be read: {error.strerror}") from error
        facts, problem = metadata.load(source.path, files, self._layout.place_facts(key))
        total = sum(each.stat().st_size for each in files)
        return Weights(source.canonical, key, source.path, total, {}, None, facts, problem)

    def _describe(self, key: str, manifest: Manifest) -> Weights:
        folder = self._layout.content(key)
        path = folder / manifest.files[0].path if manifest.single else folder
        files = [folder / each.path for each in manifest.files]
        facts, problem = metadata.load(path, files, self._layout.content_facts(key))
        digests = {each.path: each.digest for each in manifest.files}
        return Weights(manifest.source, key, path, manifest.total_bytes, digests, manifest.revision, facts, problem)

    # -- knowing and managing

    async def preflight(self, source: str) -> Preflight:
        """What fetching would need, without fetching. Raises as :meth:`ensure`."""
        parsed = parse_source(source)
        free = await self._work(free_bytes, self._layout.root, self._settings.reserve_bytes)
        if isinstance(parsed, FileSource):
            weights = await self._in_place(parsed)
            return Preflight(0, free, weights.total_bytes)
        found = await self._work(self._catalog.find, source_key(parsed.canonical))
        if found is not None and not await self._work(self._catalog.missing, *found):
            return Preflight(0, free, found[0].total_bytes)
        plan = await self._work(self._resolver.plan, parsed)
        sizes = [each.wish.size for each in plan.files]
        if None in sizes:
            return Preflight(None, free, None)
        needed = await self._work(self._still_needed, plan, found[1] if found is not None else None)
        return Preflight(needed, free, sum(each for each in sizes if each is not None))

    async def inspect(self, source: str) -> ModelFacts:
        """The model's facts from its header alone, before anything is fetched. Raises MetadataError and as :meth:`ensure`."""
        parsed = parse_source(source)
        if isinstance(parsed, FileSource):
            weights = await self._in_place(parsed)
        else:
            found = await self._work(self._catalog.find, source_key(parsed.canonical))
            if found is None:
                plan = await self._work(self._resolver.plan, parsed)
                return await self._work(metadata.inspect_remote, self._client, plan)
            weights = await self._work(self._describe, source_key(parsed.canonical), found[0])
        if weights.facts is None:
            raise MetadataError(f"{source}: {weights.facts_problem}")
        return weights.facts

    async def pin(self, source: str, owner: str) -> None:
        """The weights are in use by ``owner`` until released, also across restarts of this program. In place: nothing to do."""
        await self._pins(self._catalog.pin, source, owner)

    async def release(self, source: str, owner: str) -> None:
        """Undoes :meth:`pin`; releasing what is not pinned is no error."""
        await self._pins(self._catalog.release, source, owner)

    async def release_others(self, owners: set[str]) -> list[str]:
        """Drops all pins but those of ``owners``: after a restart, of whatever is gone. Returns whose pins went."""
        return await self._work(self._catalog.release_others, owners)

    async def _pins(self, change: Callable[[str, str], object], source: str, owner: str) -> None:
        parsed = parse_source(source)
        if not isinstance(parsed, FileSource):
            await self._work(change, source_key(parsed.canonical), owner)

    async def remove(self, source: str, *, idle: Collection[str] = ()) -> int:
        """Removes stored weights; ``source`` as it was asked for, or the key. Returns the bytes freed.

        ``idle`` owners run nothing at the moment, so that their pins do not count.

        Raises SourceNotFoundError (not stored, or used in place) and InUseError (pinned, or being fetched).
        """
        key = self._key(source)
        if key is None:
            raise SourceNotFoundError(f"{source} is used where it lies and was never copied; delete it there if that is meant")
        if key in self._jobs:
            raise InUseError(f"{source} is being fetched; stop what waits for it first")
        freed = await self._work(self._catalog.remove, key, idle)
        self._tell_peers()
        return freed

    async def list(self) -> Sequence[Stored]:
        return await self._work(self._list)

    def _list(self) -> Sequence[Stored]:
        found = []
        for key in self._catalog.stored_keys():
            if (entry := self._catalog.find(key)) is None:
                continue
            manifest, record = entry
            weights = self._describe(key, manifest)
            found.append(
                Stored(
                    manifest.source,
                    key,
                    weights.path,
                    manifest.total_bytes,
                    len(manifest.files),
                    manifest.revision,
                    record.fetched_at,
                    record.last_used_at,
                    self._catalog.owners(key),
                    weights.facts,
                    record.content,
                )
            )
        return found

    async def verify(self, source: str, *, read: Callable[[int], None] = lambda _: None) -> Sequence[str]:
        """Reads everything again; files with wrong bytes are removed and named, and the next :meth:`ensure` fetches them.

        ``source`` as it was asked for, or the key. ``read`` hears in a thread how many more bytes were read; what it raises
        ends all.
        """
        key = self._key(source)
        if key is None:
            return []
        wrong = await self._work(self._catalog.verify, key, read)
        self._tell_peers()
        return wrong

    @staticmethod
    def _key(source: str) -> str | None:
        """None for what is used in place."""
        try:
            parsed = parse_source(source)
        except SourceInvalidError:
            return source
        return None if isinstance(parsed, FileSource) else source_key(parsed.canonical)

    async def free_bytes(self) -> int:
        """What downloads may still take on the disk."""
        return await self._work(free_bytes, self._layout.root, self._settings.reserve_bytes)

    async def sweep(self) -> int:
        """Removes what crashes left behind and stale unfinished downloads. Call at start and now and then."""
        return await self._work(self._catalog.sweep)

    def blob_path(self, digest: Digest) -> Path:
        """Where a verified content lies, if it is here."""
        return self._layout.blob(digest)

    async def _work(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        work = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        return await self._named(work)

    async def _named(self, work: Awaitable[_T]) -> _T:
        """Gives the disk's own errors their names."""
        try:
            return await work
        except OSError as error:
            root = self._layout.root
            if error.errno in FULL:
                raise no_space("the store's own files", 1 << 20, 0, root) from error
            raise DiskError(f"the store under {root} cannot be used: {error}; mend the disk or its permissions") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _changes(plan: Plan, manifest: Manifest) -> bool:
    before = {each.path: each.digest for each in manifest.files}
    return any(each.wish.digest is None or before.get(each.wish.path) != str(each.wish.digest) for each in plan.files)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """One file's failure stands for all; one that no later try mends tells most."""
    flat = [_first(each) if isinstance(each, BaseExceptionGroup) else each for each in failures.exceptions]
    return min(flat, key=lambda error: bool(getattr(error, "recoverable", False)))
