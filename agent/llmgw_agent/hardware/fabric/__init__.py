"""The map of an InfiniBand subnet, made with the infiniband-diags tools by one elected node.

``mapper.make_map`` makes one; ``elect.tasks`` says which node maps through which port; ``changes.carry_over`` compares with
the map before. The record is ``llmgw_proto.records.FabricMapRecord``, one key per subnet.
"""
