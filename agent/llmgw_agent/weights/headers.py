"""Headers that several places need."""

from __future__ import annotations

import base64


def basic(credentials: str) -> dict[str, str]:
    """``credentials`` is ``user:password``."""
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}
