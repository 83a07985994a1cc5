"""Where the coordinator is and how to identify to it.

The first of these that says where: ``--server``, ``LLMGW_SERVER``, the settings file, an ``llmgwctl up`` that runs on this
machine, and last the default address. The token: ``--token-file``, ``LLMGW_TOKEN_FILE``, ``LLMGW_TOKEN``, the settings
file or the running ``up``, if that was where the address came from, and last the coordinator's default file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from llmgw_ctl.errors import BadInputError
from llmgw_ctl.running import RunningStack, find_running

DEFAULT_SERVER = "http://127.0.0.1:7080"
DEFAULT_TOKEN_FILE = Path("/var/lib/llmgw/coordinator/admin.token")


@dataclass(frozen=True, slots=True)
class Target:
    """``servers`` are tried in turn; the origins are for messages."""

    servers: tuple[str, ...]
    server_origin: str
    token: str | None
    token_origin: str
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """``$XDG_CONFIG_HOME/llmgw/ctl.yaml``."""

    server: str | None = None
    token_file: Path | None = None
    ca: Path | None = None


def settings_path(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return Path(base) / "llmgw" / "ctl.yaml"


def resolve(server: str | None, token_file: Path | None, environ: Mapping[str, str]) -> Target:
    """Finds out where to connect, from what the user said and the environment.

    Raises:
        BadInputError: the settings file, a URL or the token file cannot be used.
    """
    path = settings_path(environ)
    settings = load_settings(path)
    origin, stack = "", None
    if server:
        origin = "--server"
    elif server := environ.get("LLMGW_SERVER"):
        origin = "LLMGW_SERVER"
    elif server := settings.server:
        origin = str(path)
    elif stack := find_running(environ):
        server, origin = stack.url, f"llmgwctl up, pid {stack.pid}"
    else:
        server, origin = DEFAULT_SERVER, "the default"
    token, token_origin = _token(token_file, environ, settings if origin == str(path) else Settings(), stack)
    return Target(_urls(server, origin), origin, token, token_origin, settings.ca)


def _urls(text: str, origin: str) -> tuple[str, ...]:
    urls = tuple(each.strip().rstrip("/") for each in text.split(",") if each.strip())
    for url in urls:
        if not _is_server(url):
            raise BadInputError(
                f"{url!r} ({origin}) is not a coordinator's URL", "write for example http://127.0.0.1:7080; several with commas"
            )
    if not urls:
        raise BadInputError(f"{origin} names no URL", "write for example http://127.0.0.1:7080")
    return urls


def _is_server(url: str) -> bool:
    """Scheme, host and perhaps port, nothing else."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and url == f"{parts.scheme}://{parts.netloc}"
            and not set(parts.netloc) & set("@ \\")
            and url.isprintable()
        )
    except ValueError:
        return False


def _token(
    token_file: Path | None, environ: Mapping[str, str], settings: Settings, stack: RunningStack | None
) -> tuple[str | None, str]:
    if token_file is not None:
        return read_token(token_file), str(token_file)
    if name := environ.get("LLMGW_TOKEN_FILE"):
        return read_token(Path(name)), f"{name} (LLMGW_TOKEN_FILE)"
    if token := environ.get("LLMGW_TOKEN"):
        return _usable(token.strip(), "LLMGW_TOKEN"), "LLMGW_TOKEN"
    known = settings.token_file or (stack.token_file if stack else None)
    if known is not None:
        return read_token(known), str(known)
    if os.access(DEFAULT_TOKEN_FILE, os.R_OK):
        return read_token(DEFAULT_TOKEN_FILE), str(DEFAULT_TOKEN_FILE)
    return None, ""


def read_token(path: Path) -> str:
    """The token: the first line of the file that is not empty and not a comment.

    Raises:
        BadInputError: the file cannot be read, or holds no token.
    """
    try:
        lines = path.expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not text"
        raise BadInputError(
            f"token file {path} cannot be read: {cause}", "name the coordinator's token file with --token-file"
        ) from error
    for line in lines:
        if (text := line.strip()) and not text.startswith("#"):
            return _usable(text, f"token file {path}")
    raise BadInputError(f"token file {path} holds no token", "write the token of the coordinator's token file into it")


def _usable(token: str, origin: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadInputError(f"{origin} holds no token: blanks or characters that no token has", "copy the file as it is")
    return token


def load_settings(path: Path) -> Settings:
    """Reads the settings file; one that is not there says nothing.

    Raises:
        BadInputError: not readable, or a key that is unknown or of the wrong kind.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a folder may not be entered
        return Settings()
    from llmgw_base.config import ConfigError, Section, load

    class SettingsFile(Section):
        server: str | None = None
        token_file: Path | None = None
        ca: Path | None = None

    try:
        loaded = load(SettingsFile, path)
    except ConfigError as error:
        raise BadInputError(str(error), "mend or remove the settings file") from error

    def absolute(name: Path | None) -> Path | None:
        return None if name is None else path.parent / name.expanduser()

    return Settings(loaded.server, absolute(loaded.token_file), absolute(loaded.ca))
