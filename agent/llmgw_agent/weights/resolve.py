"""From a source to the files it means, with the places each can be had: the fleet's mirror first, then the origin."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw_proto.digests import Digest

from .client import Client, Target
from .download import Place
from .errors import AccessDeniedError, MetadataError, SourceNotFoundError, SourceUnavailableError, WeightsError
from .headers import basic
from .manifest import Manifest, ManifestFile, content_digest
from .peers import blob_url
from .receive import FileWish
from .resume import Step, judge, validator
from .settings import WeightsSettings
from .sources import HubSource, UrlSource, shown, source_key

logger = logging.getLogger(__name__)

_LARGEST_MANIFEST: Final = 16 << 20


@dataclass(frozen=True)
class PlannedFile:
    wish: FileWish
    places: Sequence[Place]  # peers come before these


@dataclass(frozen=True)
class Plan:
    """What to fetch for a source. Sizes and digests are None where only the download will tell."""

    source: str
    revision: str | None
    single: bool
    files: Sequence[PlannedFile]

    @property
    def content(self) -> str | None:
        """As :attr:`Manifest.content`; None where only the download will tell a digest, so that no peer can be believed."""
        if any(each.wish.digest is None for each in self.files):
            return None
        return content_digest((each.wish.path, str(each.wish.digest)) for each in self.files)


class Resolver:
    """Blocking."""

    def __init__(self, client: Client, settings: WeightsSettings) -> None:
        self._client = client
        self._settings = settings

    def plan(self, source: UrlSource | HubSource) -> Plan:
        """Raises any WeightsError but NoSpaceError and InUseError."""
        manifest = self._from_mirror(source)
        if isinstance(source, HubSource):
            from .hub import Hub  # late: the library is large, and nodes without hub sources never need it

            hub = Hub(self._settings.hub_endpoint, self._client, self._token())
            if manifest is None:
                manifest = hub.list(source)
            commit = manifest.revision or source.revision or "main"
            return self._planned(manifest, lambda path: hub.target(source.repo, commit, path))
        if manifest is not None:
            urls = {each.name: Target(each.url, _headers(source)) for each in source.files}
            if set(urls) == {each.path for each in manifest.files} and _keeps_promises(manifest, source):
                return self._planned(manifest, urls.__getitem__)
        return self._of_urls(source)

    def _token(self) -> str | None:
        try:
            return self._settings.token()
        except OSError as error:
            raise AccessDeniedError(f"weights.hub_token_file cannot be read: {error}") from error

    def _planned(self, manifest: Manifest, target: Callable[[str], Target]) -> Plan:
        files = [
            PlannedFile(
                FileWish(each.path, part_name(each.promise), each.size, each.promise),
                self._places(each.promise, target(each.path)),
            )
            for each in manifest.files
        ]
        return Plan(manifest.source, manifest.revision, manifest.single, files)

    def _places(self, digest: Digest | None, origin: Target) -> list[Place]:
        places = [Place(origin, optional=False)]
        if digest is not None and self._settings.mirror is not None:
            places.insert(0, Place(Target(blob_url(self._settings.mirror, digest)), optional=True, kind="mirror"))
        return places

    def _of_urls(self, source: UrlSource) -> Plan:
        files = []
        tags = []
        for each in source.files:
            target = Target(each.url, _headers(source))
            size, tag = self._look(target, promised=each.digest is not None)
            tags.append(tag)
            part = part_name(each.digest) if each.digest is not None else f"url-{hashlib.sha256(each.url.encode()).hexdigest()}"
            files.append(PlannedFile(FileWish(each.name, part, size, each.digest), self._places(each.digest, target)))
        return Plan(source.canonical, tags[0], single=True, files=files)

    def _look(self, target: Target, *, promised: bool) -> tuple[int | None, str | None]:
        """Size and version as a HEAD tells them. Many signed links allow only GET: then nothing is known yet."""
        try:
            with self._client.follow(target, {}, "HEAD", promised=promised) as exchange:
                step = judge(exchange.status, exchange.headers, exchange.length, 0, None).step
                if step is Step.RESTART:
                    return exchange.length, validator(exchange.headers)
        except SourceUnavailableError:
            pass  # peers or the mirror may have it, and the download retries and reports
        return None, None

    def _from_mirror(self, source: UrlSource | HubSource) -> Manifest | None:
        mirror = self._settings.mirror
        if mirror is None:
            return None
        target = Target(f"{mirror}/manifests/{source_key(source.canonical)}.json")
        try:
            with self._client.follow(target, {}) as exchange:
                if exchange.status in (404, 410):
                    return None
                if exchange.status != 200:
                    raise SourceUnavailableError(f"{target} answers {exchange.status}")
                manifest = Manifest.read(exchange.read_all(_LARGEST_MANIFEST), str(target))
                if manifest.source != source.canonical:
                    raise MetadataError(f"{target} describes {manifest.source}")
                return manifest
        except WeightsError as error:
            logger.warning("mirror left out", extra={"fields": {"source": shown(source.canonical), "reason": str(error)}})
            return None


def part_name(digest: Digest) -> str:
    return f"{digest.kind}-{digest.hex}"


def _headers(source: UrlSource) -> dict[str, str]:
    return basic(source.credentials) if source.credentials is not None else {}


def _keeps_promises(manifest: Manifest, source: UrlSource) -> bool:
    """A mirror may add what is not promised (size, digest), and contradict nothing that is."""
    found = {each.path: each.promise for each in manifest.files}
    return all(each.digest is None or found.get(each.name) == each.digest for each in source.files)


def to_manifest(plan: Plan, digests: dict[str, tuple[Digest, int]]) -> Manifest:
    """The plan after its files came; ``digests`` gives each path's content and size."""
    if missing := [each.wish.path for each in plan.files if each.wish.path not in digests]:
        raise SourceNotFoundError(f"{shown(plan.source)}: {missing[0]} did not come")
    return Manifest(
        source=plan.source,
        revision=plan.revision,
        single=plan.single,
        files=[ManifestFile(path=path, size=size, digest=str(digest)) for path, (digest, size) in digests.items()],
    )
