"""Sends ready-made export requests to an address, and prints how long each took: as fast as Python can, over bare
channels of grpc.aio or over plain sockets. Waits for a line on stdin before it begins, and for one before each round.

    telemetry_sender.py grpc|http ADDRESS REQUESTS SENDERS
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import grpc.aio
import uvloop

from bare_otlp import SERVICE
from telemetry_decode import request

DISTINCT = 8
WARM = 20
Send = Callable[[bytes], Awaitable[object]]

REQUESTS = [request(seed) for seed in range(DISTINCT)]


async def grpc_send(address: str) -> Send:
    channel = grpc.aio.insecure_channel(urlsplit(address).netloc, [("grpc.use_local_subchannel_pool", 1)])
    method = channel.unary_unary(f"/{SERVICE}/Export")

    async def send(body: bytes) -> object:
        return await method(body)

    return send


async def http_send(address: str) -> Send:
    netloc = urlsplit(address).netloc
    host, _, port = netloc.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/traces HTTP/1.1\r\nhost: {netloc}\r\ncontent-type: application/x-protobuf\r\ncontent-length: "
    ready = {body: f"{head}{len(body)}\r\n\r\n".encode() + body for body in REQUESTS}

    async def send(body: bytes) -> object:
        writer.write(ready[body])
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert b"content-length: 0" in answer, answer
        return answer

    return send


async def one(send: Send, count: int, first: int) -> list[float]:
    taken = []
    for number in range(first, first + count):
        started = time.perf_counter()
        await send(REQUESTS[number % DISTINCT])
        taken.append(time.perf_counter() - started)
    return taken


async def main() -> None:
    kind, address, requests, senders = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sends = [await (grpc_send if kind == "grpc" else http_send)(address) for _ in range(senders)]
    await one(sends[0], WARM, 0)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        each = requests // senders
        started = time.perf_counter()
        taken = await asyncio.gather(*(one(send, each, number) for number, send in enumerate(sends)))
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "taken": [*itertools.chain(*taken)]}), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
