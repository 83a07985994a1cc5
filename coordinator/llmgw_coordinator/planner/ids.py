"""Names for new replicas: a readable part from the model's name and five random characters."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container
from typing import TypeAlias

#: Without vowels and look-alikes, so that ids spell no words and can be read out.
ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
_LONGEST_SLUG = 40

RandomText: TypeAlias = Callable[[], str]


def random_text() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(5))


def slug(model: str) -> str:
    """Lower-case letters, digits and dashes; the last parts of long names, since they tell models apart.

    >>> slug("Org/Some_Model.7B")
    'org-some-model-7b'
    """
    text = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return text[-_LONGEST_SLUG:].strip("-") or "model"


def random_replica_id(model: str, taken: Container[str], text: RandomText = random_text) -> str:
    """An id that is not in ``taken``."""
    while True:
        candidate = f"{slug(model)}-{text()}"
        if candidate not in taken:
            return candidate
