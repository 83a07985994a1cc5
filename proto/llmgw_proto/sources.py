"""What a model's ``source`` can say. Reading only; nothing here touches disk or network."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from llmgw_proto.digests import Digest, DigestError

_REPO_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<of>\d{5})(?P<suffix>\.[A-Za-z]+)$")
#: With these a source begins that the agent itself can read; a program of engine 'command' may have others.
KNOWN_SCHEMES = ("/", "file:", "http:", "https:", "hf:")
_FORMS = "/path, file:///path, https://host/file[#sha256=...] or hf:org/repo[@revision][:file]"


class SourceError(ValueError):
    """Not written as any source is."""


@dataclass(frozen=True)
class FileSource:
    """A file or folder on this node, used where it lies."""

    path: Path

    @property
    def canonical(self) -> str:
        return f"file://{self.path}"


@dataclass(frozen=True)
class UrlFile:
    url: str  # without user and password
    name: str
    digest: Digest | None


@dataclass(frozen=True)
class UrlSource:
    """One file, or all parts of a split one; ``credentials`` is ``user:password`` from the URL."""

    files: tuple[UrlFile, ...]
    canonical: str
    credentials: str | None = None


@dataclass(frozen=True)
class HubSource:
    """A model repository: all that serving needs of it, or the files that ``pattern`` (name, glob, quantisation) names."""

    repo: str
    revision: str | None
    pattern: str | None

    @property
    def canonical(self) -> str:
        return f"hf:{self.repo}" + (f"@{self.revision}" if self.revision else "") + (f":{self.pattern}" if self.pattern else "")


Source = FileSource | UrlSource | HubSource


def parse_source(text: str) -> Source:
    """Reads a source. Raises SourceError, which says what is wrong and which forms there are."""
    if re.search(r"[\x00-\x1f\x7f]", text) or text != text.strip() or not text:
        raise SourceError(f"source {text!r} is empty or has blanks or control characters around it; write {_FORMS}")
    scheme = text.partition(":")[0].lower() if ":" in text else ""
    if text.startswith("/") or scheme == "file":
        return _file(text)
    if scheme in ("http", "https"):
        return _url(text)
    if scheme == "hf":
        return _hub(text)
    raise SourceError(f"source {text!r} is of no known kind; write {_FORMS}")


def source_key(canonical: str) -> str:
    """The name under which a source is kept: readable, unique, safe as a file name, the same on every node."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"^[a-z]+:/*|[?#].*$", "", canonical)).strip("-.")
    return f"{slug[-48:].strip('-.') or 'weights'}-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"


def split_names(name: str) -> list[str] | None:
    """All parts of a split file, given one (``x-00001-of-00003.gguf``); None for a file that is not split."""
    match = _SPLIT.match(name)
    if match is None:
        return None
    of = int(match["of"])
    if not 1 <= int(match["part"]) <= of or of > 10_000:
        return None
    return [f"{match['stem']}-{part:05}-of-{match['of']}{match['suffix']}" for part in range(1, of + 1)]


def redacted(url: str) -> str:
    """The URL as it may stand in logs and messages: no user, no password, no query (signed links carry keys there)."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "...", "")) if parts.query else f"{parts.scheme}://{host}{parts.path}"


def _file(text: str) -> FileSource:
    if text.startswith("/"):
        return FileSource(Path(text))
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SourceError(f"source {text!r}: a file source names a path on each node; write file:///path")
    return FileSource(Path(unquote(parts.path)))


def _url(text: str) -> UrlSource:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SourceError(f"source {redacted_text(text)}: {error}") from None
    name = unquote(parts.path).rpartition("/")[2]
    if not host or not name or name in (".", "..") or "\0" in name or "/" in name:
        raise SourceError(f"source {redacted_text(text)} names no file; write https://host/path/model.gguf")
    host = f"[{host}]" if ":" in host else host
    netloc = f"{host}:{port}" if port is not None else host
    path = quote(unquote(parts.path), safe="/!$&'()*+,;=:@~")
    scheme = parts.scheme.lower()
    names = split_names(name) or [name]
    digests = _url_digests(parts.fragment, len(names), text)
    base = path.rpartition("/")[0]
    files = tuple(
        UrlFile(urlunsplit((scheme, netloc, f"{base}/{quote(each)}", parts.query, "")), each, digest)
        for each, digest in zip(names, digests, strict=True)
    )
    fragment = "sha256=" + ",".join(each.hex for each in digests if each) if digests[0] else ""
    credentials = unquote(parts.netloc.rpartition("@")[0]) or None
    return UrlSource(files, urlunsplit((scheme, netloc, path, parts.query, fragment)), credentials)


def redacted_text(text: str) -> str:
    try:
        return repr(redacted(text))
    except ValueError:
        return "(a URL that cannot be read)"


def _url_digests(fragment: str, count: int, text: str) -> list[Digest | None]:
    if not fragment:
        return [None] * count
    kind, _, values = fragment.partition("=")
    if kind != "sha256":
        raise SourceError(f"source {redacted_text(text)}: after '#' only sha256=... may stand, not {fragment[:40]!r}")
    try:
        found: list[Digest | None] = [Digest.parse(f"sha256:{each}") for each in values.split(",")]
    except DigestError as error:
        raise SourceError(f"source {redacted_text(text)}: {error}") from None
    if len(found) != count:
        raise SourceError(
            f"source {redacted_text(text)} has {count} parts but {len(found)} digests; give one for each part, with commas"
        )
    return found


def _hub(text: str) -> HubSource:
    rest = text[3:].removeprefix("//")
    rest, colon, pattern = rest.partition(":")
    repo, at, revision = rest.partition("@")
    names = repo.split("/")
    problem = None
    if not 1 <= len(names) <= 2 or not all(_REPO_PART.fullmatch(each) and ".." not in each for each in names):
        problem = f"{repo!r} is not a repository; write hf:org/repo"
    elif (at and not revision) or ".." in revision or not re.fullmatch(r"[\w./+-]{0,200}", revision):
        problem = f"{revision!r} is not a revision; name a branch, a tag or a commit"
    elif (colon and not pattern) or pattern.startswith("/") or "\\" in pattern or ".." in pattern.split("/"):
        problem = f"{pattern!r} is not a file of a repository; name a file, a glob such as *Q4_K_M*.gguf, or a quantisation"
    if problem is not None:
        raise SourceError(f"source {text!r}: {problem}")
    return HubSource(repo, revision or None, pattern or None)
