"""What a source turned out to be: its files with sizes and digests. Also the record that mirrors publish."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from llmgw_proto.digests import Digest, DigestError

from .errors import MetadataError


def safe_relative(path: str) -> bool:
    """Whether a path from elsewhere stays inside the folder that it is joined to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path and "\\" not in path


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """Of the paths and digests of all files of a model."""
    lines = sorted(f"{path}\0{digest}\n" for path, digest in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class ManifestFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    size: int = Field(ge=0)
    digest: str  # "sha256:<hex>" or "git:<hex>"

    @field_validator("path")
    @classmethod
    def _inside(cls, value: str) -> str:
        if not safe_relative(value):
            raise ValueError("the path leaves its folder")
        return value

    @field_validator("digest")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            return str(Digest.parse(value))
        except DigestError as error:
            raise ValueError(str(error)) from None

    @property
    def promise(self) -> Digest:
        return Digest.parse(self.digest)


class Manifest(BaseModel):
    """``revision`` is the commit or the server's entity tag; ``single`` says that the weights are one (perhaps split) file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = 1
    source: str
    revision: str | None = None
    single: bool = False
    files: list[ManifestFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len({each.path for each in self.files}) != len(self.files):
            raise ValueError("a path appears twice")
        return self

    @property
    def total_bytes(self) -> int:
        return sum(each.size for each in self.files)

    @property
    def content(self) -> str:
        """A digest of all names and contents: the same wherever the same files came from."""
        return content_digest((each.path, each.digest) for each in self.files)

    @classmethod
    def read(cls, data: bytes | str, where: str) -> Self:
        """Raises MetadataError naming ``where`` and the field."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(each) for each in first["loc"]) or "value"
            raise MetadataError(f"{where} is not a manifest: {field}: {first['msg']}") from None
