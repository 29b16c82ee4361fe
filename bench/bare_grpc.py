"""A bare grpc.aio server that answers SendMessage and does nothing else: what gRPC itself takes. Prints its address."""

from __future__ import annotations

import grpc
import grpc.aio
import uvloop
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs


class Answers(stubs.ProducerServiceServicer):
    async def CreateProducer(self, request: pb.ProducerRequest, _: object) -> pb.ProducerResponse:  # noqa: N802
        return pb.ProducerResponse(request_id=request.request_id, producer_id=1, producer_name=request.producer_name)

    async def SendMessage(self, request: pb.StreamMessage, _: object) -> pb.MessageResponse:  # noqa: N802
        return pb.MessageResponse(request_id=request.request_id)


async def main() -> None:
    server = grpc.aio.server()
    stubs.add_ProducerServiceServicer_to_server(Answers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
