"""KV-cache events of a real vLLM, as its agent forwards them: what requests with a shared prefix put into the cache."""

from __future__ import annotations

import asyncio

from grpc import aio

from llmgw_agent.kv_events import BlockStored, decode_batch
from llmgw_base.clock import SystemClock
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.secrets import agent_token
from llmgw_proto import keyspace, shards_pb2, shards_pb2_grpc
from llmgw_proto.records import ClusterRecord
from llmgw_testing.real_engines import MODEL, Served
from llmgw_testing.wait import eventually

#: More than two blocks of 32 tokens; the tiny model's tokens are bytes.
PREFIX = "The same words stand at the beginning of both requests, and there are a good many of them, so that blocks are full. "


async def secret(served: Served) -> str:
    store = EtcdStore(served.stack.etcd.section(), SystemClock())
    try:
        found = await store.get(keyspace.CLUSTER)
    finally:
        await store.close()
    assert found is not None
    return ClusterRecord.decode(found.value).engine_secret


def test_what_requests_put_into_the_cache_is_told(served: Served) -> None:
    async def body() -> None:
        (replica,) = served.stack.replicas(MODEL)
        node = served.stack.admin(f"/admin/v1/nodes/{replica['node']}")
        token = agent_token(await secret(served), replica["node"])
        batches: list[shards_pb2.KvBatch] = []
        sources: list[shards_pb2.KvSource] = []
        lost: list[shards_pb2.KvLost] = []
        async with aio.insecure_channel(node["grpc_address"]) as channel:
            stub = shards_pb2_grpc.ShardsStub(channel)  # type: ignore[no-untyped-call]  # generated
            request = shards_pb2.KvEventsRequest(shard=f"{replica['id']}.0")
            stream = stub.KvEvents(request, metadata=(("authorization", f"Bearer {token}"),))

            async def read() -> None:
                async for each in stream:
                    match each.WhichOneof("what"):
                        case "source":
                            sources.append(each.source)
                        case "batch":
                            batches.append(each.batch)
                        case _:
                            lost.append(each.lost)

            def stored() -> list[BlockStored]:
                events = [event for each in batches for event in decode_batch(each.seq, each.payload).events]
                return [event for event in events if isinstance(event, BlockStored)]

            task = asyncio.create_task(read())
            try:
                await eventually(lambda: sources, within=60, what="the stream to begin")
                for end in ("one", "two"):
                    await asyncio.to_thread(complete, served, PREFIX + end)
                # The second request finds what the first one stored, and stores its own end.
                await eventually(lambda: len(stored()) >= 2, within=60, what="blocks to be stored")
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        (source,) = sources
        assert (source.engine, source.number, source.shard) == ("vllm", 1, f"{replica['id']}.0")
        assert lost == []
        assert [each.seq for each in batches] == list(range(len(batches)))
        assert {each.topic for each in batches} == {f"kv@{replica['id']}.0@{MODEL}"}
        blocks = stored()
        assert {each.block_size for each in blocks} == {32}
        hashes = [found for each in blocks for found in each.block_hashes]
        assert len(hashes) == len(set(hashes)), "a prefix that was there already was not stored again"
        assert any(each.parent_block_hash in hashes for each in blocks), "later blocks name the ones before them"

    asyncio.run(body())


def complete(served: Served, prompt: str) -> None:
    answer = served.client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, temperature=0)
    assert answer.choices
