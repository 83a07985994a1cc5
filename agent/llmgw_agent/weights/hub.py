"""Model hubs: huggingface_hub asks what a repository holds, over this package's own guarded connections.

Contents are fetched by :mod:`.download`, which verifies every byte, resumes after a kill and pins addresses; the library's
own downloader does none of these three for all files.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Final

import httpx2
from huggingface_hub import HfApi, hf_hub_url, is_offline_mode, set_client_factory
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from llmgw_proto.digests import Digest

from .client import Client, Target
from .errors import AccessDeniedError, SourceInvalidError, SourceNotFoundError, SourceUnavailableError
from .guard import origin
from .manifest import Manifest, ManifestFile, safe_relative
from .selection import select
from .sources import HubSource, split_names

_LARGEST_ANSWER: Final = 64 << 20
_asking: ContextVar[Hub] = ContextVar("weights_hub")


class _Guarded(httpx2.BaseTransport):
    """Carries huggingface_hub's requests; it follows redirects itself, so each comes through here and is checked."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return _asking.get().carry(request)


@cache
def _install() -> None:
    # The library takes its transport for the whole process; nothing else in an agent uses the library.
    set_client_factory(lambda: httpx2.Client(transport=_Guarded(), follow_redirects=True, timeout=None))


class Hub:
    """One hub, with one token or none. Blocking."""

    def __init__(self, endpoint: str, client: Client, token: str | None) -> None:
        self._endpoint = endpoint
        self._client = client
        self._token = token
        _install()

    def carry(self, request: httpx2.Request) -> httpx2.Response:
        """One request of huggingface_hub's. Raises AddressRefusedError, SourceUnavailableError."""
        url = str(request.url)
        left_out = {"host", "connection", "accept-encoding"}
        if origin(url) != origin(self._endpoint):
            left_out.add("authorization")  # also when a hub's own links lead elsewhere
        headers = {name: value for name, value in request.headers.items() if name not in left_out}
        with self._client.once(Target(url), headers, request.method) as exchange:
            kept = [(name, value) for name, value in exchange.headers.items() if name != "transfer-encoding"]
            body = b"" if request.method == "HEAD" else exchange.read_all(_LARGEST_ANSWER)
            return httpx2.Response(exchange.status, headers=kept, content=body, request=request)

    def list(self, source: HubSource) -> Manifest:
        """The files to fetch, at the commit that the revision means now.

        Raises:
            SourceNotFoundError, AccessDeniedError, SourceInvalidError, SourceUnavailableError, AddressRefusedError.
        """
        if is_offline_mode():
            raise SourceUnavailableError(f"{source.canonical} is not here, and HF_HUB_OFFLINE forbids asking the hub; unset it")
        reset = _asking.set(self)
        where = f"hf:{source.repo}" + (f"@{source.revision}" if source.revision else "")
        try:
            # False rather than None: a token that lies in someone's home is not used by accident.
            api = HfApi(endpoint=self._endpoint, token=self._token or False, library_name="llmgw")
            commit = api.model_info(source.repo, revision=source.revision).sha
            if commit is None:
                raise SourceUnavailableError(f"{self._endpoint} does not say which commit {where} is")
            listed = list(api.list_repo_tree(source.repo, recursive=True, revision=commit))
        except GatedRepoError as error:
            raise AccessDeniedError(
                f"{where} is gated on {self._endpoint}: accept its terms there and set weights.hub_token for that account"
            ) from error
        except RevisionNotFoundError as error:
            raise SourceNotFoundError(
                f"{self._endpoint} has {source.repo}, but no revision {source.revision!r} of it"
            ) from error
        except RepositoryNotFoundError as error:
            raise SourceNotFoundError(
                f"{self._endpoint} shows no {source.repo}: check the name; a private one needs weights.hub_token"
            ) from error
        except HFValidationError as error:
            raise SourceInvalidError(f"{where}: {error}") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise AccessDeniedError(f"{self._endpoint} denies access to {where}; check weights.hub_token") from error
            raise SourceUnavailableError(f"{self._endpoint} answers {status} for {where}") from error
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            raise SourceUnavailableError(
                f"{self._endpoint} answers for {where} with what is no hub's answer: {error}"
            ) from error
        finally:
            _asking.reset(reset)
        files = {each.path: each for each in listed if isinstance(each, RepoFile) and safe_relative(each.path)}
        chosen = select(sorted(files), source.pattern, where)
        return Manifest(
            source=source.canonical,
            revision=commit,
            single=_single(chosen),
            files=[_file(files[each]) for each in chosen],
        )

    def target(self, repo: str, commit: str, path: str) -> Target:
        """Where one file is fetched; the token is for the hub, never for where it redirects to."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return Target(hf_hub_url(repo, path, revision=commit, endpoint=self._endpoint), headers)


def _single(chosen: list[str]) -> bool:
    return len(chosen) == 1 or split_names(chosen[0]) == chosen


def _file(file: RepoFile) -> ManifestFile:
    if file.lfs is not None:
        return ManifestFile(path=file.path, size=file.lfs.size, digest=str(Digest("sha256", file.lfs.sha256.lower())))
    return ManifestFile(path=file.path, size=file.size, digest=str(Digest("git", file.blob_id.lower())))
