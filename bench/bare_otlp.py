"""A bare grpc.aio server that receives export requests and answers at once: what gRPC takes. Prints its address."""

from __future__ import annotations

import grpc
import grpc.aio
import uvloop

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


async def answer(_: bytes, __: object) -> bytes:
    return b""


async def main() -> None:
    server = grpc.aio.server()
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
