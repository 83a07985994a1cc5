"""The bandwidth test between two nodes.

One node serves, the other runs; who does which is arranged by whoever asks (the agents' gRPC service):

1. ``guard.refusal`` on both: never while a replica serves on the ports in question, unless forced;
2. ``choose.method`` decides between RDMA (``perftest``) and TCP (``tcp``);
3. the server's side starts (``perftest.Server.start`` or ``tcp.Server.start``) and tells its port;
4. the client's side runs (``perftest.run`` or ``tcp.run``) and has the result.
"""
