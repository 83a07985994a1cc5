"""One small async interface to etcd (v3 API), a client over grpc.aio, and twins of it for tests.

Read :mod:`llmgw_base.etcd.api` first: it is all that the programs use.
"""
