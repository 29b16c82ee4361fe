"""A bare grpc.aio server that answers each batch of a Flight stream and does nothing else. Prints its address."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import uvloop

from frazil.doors.flight.door import SERVICE
from frazil.doors.flight.flight_pb2 import PutResult

ANSWER = PutResult(app_metadata=b"{}").SerializeToString()


async def put(_: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(ANSWER)


async def main() -> None:
    server = grpc.aio.server()
    handlers = {"DoPut": grpc.stream_stream_rpc_method_handler(put)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"grpc://127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
