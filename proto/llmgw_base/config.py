"""Configuration: a YAML file plus ``--set key.path=value``, checked by pydantic models.

Every problem is a :class:`ConfigError` whose text names the file, the key path and the cause, and says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails


class ConfigError(Exception):
    """The configuration cannot be used. Reaction: print the message, exit with status 2."""


class Section(BaseModel):
    """A part of a configuration file: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class TlsSection(Section):
    """PEM files of one identity: its certificate, its key, and the CA that vouches for the other side."""

    ca: Path
    cert: Path
    key: Path


def _endpoint(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in ("http", "https", "unix") or not rest.strip("/"):
        raise ValueError(f"{value!r} is not an etcd endpoint; write http://host:2379, https://host:2379 or unix:///path")
    return value.rstrip("/") if scheme != "unix" else value


class EtcdSection(Section):
    """Where the store is and how to identify to it."""

    endpoints: list[Annotated[str, AfterValidator(_endpoint)]] = Field(default=["http://127.0.0.1:2379"], min_length=1)
    user: str | None = None
    password_file: Path | None = None
    tls: TlsSection | None = None
    trial: bool = Field(default=False, description="accept an etcd version with known faults; for trying llmgw out only")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file go together; set both or none")
        if self.tls is None and any(each.startswith("https://") for each in self.endpoints):
            raise ValueError("an https:// endpoint needs tls: with ca, cert and key")
        return self


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "journal", "json", "text"] = Field(
        default="auto", description="auto: journal fields under systemd, text on a terminal, JSON elsewhere"
    )


S = TypeVar("S", bound=Section)


def load(cls: type[S], path: Path | None, overrides: Sequence[str] = ()) -> S:
    """Reads ``path`` (None: nothing but defaults), applies ``overrides`` such as ``etcd.endpoints=[http://h:2379]`` and checks.

    Values of overrides are read as YAML.

    Raises:
        ConfigError: the file is missing, unreadable or not YAML; a key is unknown, missing or of the wrong kind.
    """
    data = _read(path) if path is not None else {}
    for override in overrides:
        _apply(data, override)
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        source = str(path) if path is not None else "command line"
        lines = [_describe(source, cls, detail) for detail in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """A key that stands twice in one mapping is nearly always a slip; YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str | bytes, source: str) -> Any:
    """Reads one YAML document, refusing duplicate keys.

    Raises:
        ConfigError: not YAML; names the source, line and column.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - derived from SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not readable as YAML: {_yaml_cause(error)}") from error


def _yaml_cause(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or str(error).splitlines()[0]}{where}"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give another with --config") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    data = parse_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file must hold keys and values, but it holds a {type(data).__name__}")
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise ConfigError(f"--set {override}: write it as key.path=value, for example --set log.level=debug")
    inner: dict[str, Any] = data
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: {key} is not a section in the file")
    inner[keys[-1]] = parse_yaml(text, f"--set {override}")


def _describe(source: str, cls: type[BaseModel], detail: ErrorDetails) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields_at(cls, detail["loc"][:-1])
        close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"known here: {', '.join(sorted(known))}"
        return f"{source}: {path}: unknown key; {remedy}"
    if detail["type"] == "missing":
        return f"{source}: {path}: missing; it has no default, so set it"
    message = detail["msg"].removeprefix("Value error, ")
    value = detail["input"]
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool | None) and repr(value) not in message else ""
    return f"{source}: {path or 'file'}: {message}{shown}"


def _fields_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    inner: type[BaseModel] | None = cls
    for part in path:
        field = inner.model_fields.get(str(part)) if inner is not None else None
        if field is None:
            continue
        inner = next((each for each in _models_in(field.annotation)), None)
    return list(inner.model_fields) if inner is not None else []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for each in getattr(annotation, "__args__", ()) for model in _models_in(each)]
