"""Settings of hypothesis for tests that gate landings: the same examples each time, and no deadline on a busy machine.

``STEADY_EXAMPLES=5000`` in the environment looks further, with new examples each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_MORE = os.environ.get("STEADY_EXAMPLES")
steady = settings(
    deadline=None,
    derandomize=_MORE is None,
    max_examples=int(_MORE or 100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
