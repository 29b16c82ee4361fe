"""Our copy of Danube's protocol is that of its stock client, byte for byte."""

from __future__ import annotations

from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2

from frazil.doors.danube.proto import DanubeApi_pb2 as own_api
from frazil.doors.danube.proto import SchemaRegistry_pb2 as own_registry


def test_messages_and_services_are_those_of_the_stock_client() -> None:
    assert own_api.DESCRIPTOR.serialized_pb == DanubeApi_pb2.DESCRIPTOR.serialized_pb
    assert own_registry.DESCRIPTOR.serialized_pb == SchemaRegistry_pb2.DESCRIPTOR.serialized_pb
