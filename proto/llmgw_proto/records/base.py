"""What all records share: JSON in etcd, unknown fields kept, a named error for what cannot be read."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class BadRecordError(ValueError):
    """A value in etcd is not a record of the wanted kind. Reaction: skip this key, say so, keep what was known."""


class Record(BaseModel):
    """A value stored under one etcd key.

    Fields unknown to this version are kept in ``model_extra`` and written back, so that a newer program's fields survive a
    rewrite by an older one. To change a record, read it and use ``model_copy(update=...)``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="null")

    def encode(self) -> bytes:
        """UTF-8 JSON; fields that are None are left out."""
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def decode(cls, value: bytes, key: str = "") -> Self:
        """Reads a record.

        Raises:
            BadRecordError: not JSON, or a field of the wrong type; the message names key and field.
        """
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(each) for each in first["loc"]) or "value"
            raise BadRecordError(f"{key or cls.__name__}: {where}: {first['msg']}") from error
