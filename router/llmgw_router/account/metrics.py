"""The router's figures, by name."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw_router.account.figures import Counter, Family, Histogram, family_of

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)


class Metrics:
    """Label values come from the table, from routes and from key names, never from free text of a client."""

    def __init__(self) -> None:
        self.requests = Counter(
            "llmgw_router_requests",
            "Requests settled, by the status that the client got (499: it left)",
            ["model", "route", "code"],
        )
        self.tokens = Counter(
            "llmgw_router_tokens",
            "Tokens, as engines told them; kind is prompt, cached or completion",
            ["model", "key", "kind"],
        )
        self.estimated = Counter(
            "llmgw_router_tokens_estimated",
            "Completion tokens counted by events, for streams that ended without usage",
            ["model", "key"],
        )
        self.retries = Counter(
            "llmgw_router_retries", "Attempts repeated on another replica or connection", ["model", "reason"]
        )
        self.engine_failures = Counter("llmgw_router_engine_failures", "Attempts that failed, by cause", ["replica", "reason"])
        self.ejections = Counter("llmgw_router_ejections", "Times that a replica was taken out of use", ["replica"])
        self.withheld = Counter("llmgw_router_access_log_dropped", "Access log lines dropped, since nobody took them", [])
        self.refused = Counter("llmgw_router_connections_refused", "Client connections turned away, by cause", ["reason"])
        self.duration = Histogram(
            "llmgw_router_request_duration_seconds",
            "From the request's first byte to its settlement",
            ["model", "route"],
            _SECONDS,
        )
        self.first_token = Histogram(
            "llmgw_router_time_to_first_token_seconds",
            "Streams: from the request's first byte to the answer's first event",
            ["model"],
            _FIRST,
        )
        self.between_tokens = Histogram(
            "llmgw_router_inter_token_latency_seconds", "Streams: between two events", ["model"], _BETWEEN
        )
        self.queued = Histogram("llmgw_router_queue_seconds", "Time waited for a replica below its limit", ["model"], _SECONDS)

    def families(self, gauges: Iterable[Family] = ()) -> list[Family]:
        counters = (
            self.requests,
            self.tokens,
            self.estimated,
            self.retries,
            self.engine_failures,
            self.ejections,
            self.withheld,
            self.refused,
        )
        histograms = (self.duration, self.first_token, self.between_tokens, self.queued)
        return [*(family_of(each) for each in counters), *(family_of(each) for each in histograms), *gauges]
