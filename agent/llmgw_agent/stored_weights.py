"""The agent's store of weights: opened at the start, and kept tidy."""

from __future__ import annotations

import logging
from pathlib import Path

from llmgw_agent.config import AgentConfig
from llmgw_agent.weights import PeerSource, WeightsError, WeightStore
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError

SWEEP_EVERY = 6 * 3600.0
logger = logging.getLogger(__name__)


def weights_folder(config: AgentConfig) -> Path:
    return config.weights.dir or config.state_dir / "weights"


def open_weights(config: AgentConfig, clock: Clock, peers: PeerSource | None = None) -> WeightStore:
    """Raises ConfigError: the folder cannot be used, or the certificate authorities cannot be read."""
    folder = weights_folder(config)
    try:
        return WeightStore(folder, clock=clock, settings=config.weights, peers=peers)
    except OSError as error:
        raise ConfigError(
            f"weights: {folder} or ca_file cannot be used: {error}; correct weights.dir or permissions"
        ) from error


async def forget_others(store: WeightStore, shards: set[str]) -> None:
    """At the agent's start: weights of shards that ended while it was away may be removed. Before any new shard starts."""
    try:
        gone = await store.release_others(shards)
    except WeightsError as error:
        logger.warning("cannot see whose weights are used no more", extra={"fields": {"cause": str(error)}})
        return
    if gone:
        logger.info("weights of shards that are gone may be removed", extra={"fields": {"shards": ", ".join(sorted(gone))}})


async def keep_tidy(store: WeightStore, clock: Clock) -> None:
    """Removes what crashes left behind and downloads that nobody continued. For ever."""
    while True:
        try:
            removed = await store.sweep()
        except WeightsError as error:
            logger.warning("cannot tidy up the weights", extra={"fields": {"cause": str(error)}})
        else:
            if removed:
                logger.info("tidied up the weights", extra={"fields": {"removed": removed}})
        await clock.sleep(SWEEP_EVERY)
