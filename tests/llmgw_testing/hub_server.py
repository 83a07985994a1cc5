"""A model hub as huggingface_hub speaks to it: model info, paged trees, resolve with redirects to a content server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

from llmgw_testing.file_server import FileServer, Seen, Served

PAGE = 3  # small, so that paging is always used


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """Files by path; those of 1,000 bytes and more are kept with LFS, as weights are."""

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=dict)  # branch or tag to commit
    token: str | None = None
    gated: bool = False
    wrong: dict[str, bytes] = field(default_factory=dict)  # what is sent instead of a small file


class HubServer:
    """``hub.url`` is the endpoint; large files are redirected to ``content``, another origin, whose faults tests may set."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.content = FileServer()
        self.seen: list[Seen] = []
        self.url = ""
        self.down = False
        self.more_pages_at: str | None = None  # where the tree's further pages are said to be
        self.redirect_to: str | None = None  # where large files are redirected instead
        self._small = FileServer()
        self._runner: web.AppRunner | None = None

    def add(self, repo: str, files: dict[str, bytes], *, token: str | None = None, gated: bool = False) -> Repo:
        commit = hashlib.sha1(repo.encode() + b"".join(files.values())).hexdigest()
        self.repos[repo] = made = Repo(dict(files), {"main": commit}, token, gated)
        for data in files.values():
            if len(data) >= 1000:
                self.content.put(self.content_path(data), data)
        return made

    @staticmethod
    def content_path(data: bytes) -> str:
        return f"/lfs/{hashlib.sha256(data).hexdigest()}"

    async def __aenter__(self) -> Self:
        await self.content.__aenter__()
        app = web.Application()
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/revision/{revision}", self._info)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}/tree/{revision}", self._tree)
        app.router.add_get("/api/models/{repo:[^/]+/[^/]+}", self._info)
        app.router.add_get("/{repo:[^/]+/[^/]+}/resolve/{revision}/{path:.*}", self._resolve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        await self.content.__aexit__()

    def _find(self, request: web.Request) -> tuple[Repo, str]:
        headers = request.headers
        self.seen.append(Seen(request.method, request.path, headers.get("Range"), None, headers.get("Authorization")))
        if self.down:
            raise web.HTTPServiceUnavailable
        repo = self.repos.get(request.match_info["repo"])
        allowed = repo is not None and (repo.token is None or headers.get("Authorization") == f"Bearer {repo.token}")
        if repo is None or not allowed:
            raise web.HTTPUnauthorized(headers={"X-Error-Code": "RepoNotFound"})
        if repo.gated:
            raise web.HTTPForbidden(headers={"X-Error-Code": "GatedRepo"})
        revision = request.match_info.get("revision", "main")
        commit = repo.revisions.get(revision, revision)
        if commit not in repo.revisions.values():
            raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})
        return repo, commit

    async def _info(self, request: web.Request) -> web.Response:
        repo, commit = self._find(request)
        name = request.match_info["repo"]
        siblings = [{"rfilename": path} for path in repo.files]
        return web.json_response({"_id": "1", "id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    async def _tree(self, request: web.Request) -> web.Response:
        repo, commit = self._find(request)
        entries: list[dict[str, object]] = []
        folders = {path.rpartition("/")[0] for path in repo.files} - {""}
        entries.extend(
            {"type": "directory", "oid": git_sha1(each.encode()), "size": 0, "path": each} for each in sorted(folders)
        )
        for path, data in sorted(repo.files.items()):
            entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if len(data) >= 1000:
                entry["oid"] = git_sha1(b"pointer" + data)
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        start = int(request.query.get("cursor", "0"))
        headers = {}
        if start + PAGE < len(entries):
            following = f"{self.more_pages_at or self.url}{request.path}?recursive=true&cursor={start + PAGE}"
            headers["Link"] = f'<{following}>; rel="next"'
        return web.json_response(entries[start : start + PAGE], headers={**headers, "X-Repo-Commit": commit})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        repo, commit = self._find(request)
        data = repo.files.get(request.match_info["path"])
        if data is None:
            raise web.HTTPNotFound(headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        if len(data) >= 1000:
            location = self.redirect_to or self.content.url(self.content_path(data))
            headers["X-Linked-ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
            return web.Response(status=302, headers={**headers, "Location": location})
        sent = repo.wrong.get(request.match_info["path"], data)
        return await self._small.send(request, Served(sent, f'"{git_sha1(data)}"'), self.seen[-1])
