"""Load on a cluster by clients of both kinds, and whether everything that was acknowledged is there and was delivered.

Stock clients know one address, that of a balancer. A client whose broker has died keeps to that broker's address: after
its retries it raises, or its stream stays silent, and the application makes a new client, as here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from danube.client import DanubeClient, DanubeClientBuilder
from danube.consumer import Consumer, ConsumerOptions, SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.errors import DanubeError
from danube.producer import Producer, ProducerOptions
from danube.proto import DanubeApi_pb2 as pb

import frazil
from frazil.core.errors import DiskFull, FrazilError

_log = logging.getLogger("danube")

KEYS = 8
PAUSE_SECONDS = 0.02
"""Of a producer between two messages: without one, they take the processor from the brokers that start."""
KINDS = (SubType.EXCLUSIVE, SubType.KEY_SHARED)
RETRIES = {"max_retries": 20, "base_backoff_ms": 50, "max_backoff_ms": 200}
ANSWER_SECONDS_MAX = 5.0
"""A host that hangs does not answer; the balancer's next connection goes to another one."""
DELIVERY_SECONDS_MAX = 60.0

Answer = TypeVar("Answer")


@dataclass
class Load:
    """What was acknowledged and delivered, by topic."""

    topics: Sequence[str]
    numbered: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Offset and text, by clients of Frazil."""
    stock: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Texts, by stock clients."""
    delivered: dict[tuple[str, SubType], list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Offset and text, in the order in which the consumer of a subscription got them."""
    made_again: Counter[str] = field(default_factory=Counter)
    """Stock clients that lost their broker, by what they met."""
    silent_seconds_max: float = 2.0
    """There are always messages: a consumer without any for so long has lost its broker."""
    failed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Publishers that send nothing more: until all have ended, more may be acknowledged."""
    stop: threading.Event = field(default_factory=threading.Event)
    subscribed: threading.Event = field(default_factory=threading.Event)

    def count(self, topic: str) -> int:
        return len(self.numbered[topic])

    @contextlib.contextmanager
    def running(self, addresses: list[str], url: str) -> Iterator[None]:
        """Publish and consume meanwhile; at the end, wait until everything acknowledged is delivered."""
        _log.setLevel(logging.CRITICAL)  # its consumers try a dead broker without a pause, with two lines for each try
        stock = threading.Thread(target=asyncio.run, args=(self._use_stock(url),), daemon=True)
        stock.start()
        assert self.subscribed.wait(60), self.failed
        threads = [stock]
        for number, topic in enumerate(self.topics):
            arguments = (addresses, topic, f"n{number}")
            threads.append(threading.Thread(target=self._publish_numbered, args=arguments, daemon=True))
            threads[-1].start()
        try:
            yield
        finally:
            self.stop.set()
            _log.setLevel(logging.NOTSET)
            for thread in threads:
                thread.join(DELIVERY_SECONDS_MAX + 60)
        assert not [one for one in threads if one.is_alive()], "a client does not end"

    def _publish_numbered(self, addresses: list[str], topic: str, name: str) -> None:
        """Publish one message after the other; the client repeats what gets no answer."""
        try:
            with frazil.connect(addresses, producer=name) as storage:
                remote = storage.topic(topic, create=False)
                for number in itertools.count():
                    if self.stop.is_set():
                        return
                    text = f"{name}:{number}"
                    self.numbered[topic].append((self._published(remote, text, f"k{number % KEYS}"), text))
                    self.stop.wait(PAUSE_SECONDS)
        except FrazilError:
            self.failed.append(f"{topic} {name}: {traceback.format_exc()}")
        finally:
            self.ended.append(name)

    def _published(self, topic: Any, text: str, key: str) -> int:
        """Publish again what a full disk has refused: the client leaves that to the application."""
        while True:
            try:
                offset: int = topic.publish(text, key=key)
                return offset
            except DiskFull:
                if self.stop.wait(0.1):
                    raise

    # --- stock clients

    async def _use_stock(self, url: str) -> None:
        consumers = [asyncio.create_task(self._consume(url, topic, kind)) for topic in self.topics for kind in KINDS]
        producers = [self._publish_to_end(url, topic, f"s{number}") for number, topic in enumerate(self.topics)]
        try:
            while len(self.delivered) < len(consumers):
                for one in consumers:
                    if one.done():
                        one.result()
                await asyncio.sleep(0.05)
            self.subscribed.set()
            await asyncio.gather(*producers)
            async with asyncio.timeout(DELIVERY_SECONDS_MAX):
                await asyncio.gather(*consumers)
        except TimeoutError:
            self.failed.append("not everything that was acknowledged is delivered")
        except Exception:  # noqa: BLE001  whatever it is, the test shows it
            self.failed.append(f"stock clients: {traceback.format_exc()}")

    async def _publish_to_end(self, url: str, topic: str, name: str) -> None:
        try:
            await self._publish_stock(url, topic, name)
        finally:
            self.ended.append(name)

    async def _publish_stock(self, url: str, topic: str, name: str) -> None:
        sender: Producer | None = None
        for number in itertools.count():
            text = f"{name}:{number}"
            while True:
                if self.stop.is_set():
                    return
                try:
                    if sender is None:
                        sender = await _soon(_producer(url, topic, name))
                    await sender.send_with_key(text.encode(), None, f"k{number % KEYS}")
                    break
                except (grpc.aio.AioRpcError, DanubeError, TimeoutError) as error:
                    _check_temporary(error)
                    if sender is not None:
                        await sender.close()
                    sender = None
                    await self._note(f"producer: {_reason(error)}")
            self.stock[topic].append(text)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _consume(self, url: str, topic: str, kind: SubType) -> None:
        while not self._all_delivered(topic, kind):
            try:
                async with _consumer(url, topic, kind) as (consumer, queue):
                    found = self.delivered[topic, kind]  # is there from now on: it has subscribed
                    while not self._all_delivered(topic, kind):
                        message = await asyncio.wait_for(queue.get(), self.silent_seconds_max)
                        found.append((message.msg_id.topic_offset, message.payload.decode()))
                        await _acknowledge(consumer, message)
            except (grpc.aio.AioRpcError, DanubeError, TimeoutError) as error:
                _check_temporary(error)
                await self._note(f"consumer: {_reason(error)}")

    async def _note(self, reason: str) -> None:
        self.made_again[reason] += 1
        await asyncio.sleep(0.1)  # an application that begins anew pauses

    def _all_delivered(self, topic: str, kind: SubType) -> bool:
        """Asked often: compares only after the end of the publishing."""
        if len(self.ended) < 2 * len(self.topics):
            return False
        wanted = {text for _, text in self.numbered[topic]} | set(self.stock[topic])
        return not wanted - {text for _, text in self.delivered[topic, kind]}


def check_load(load: Load, addresses: list[str]) -> None:
    """Nothing acknowledged is lost, numbered rows are there once, offsets have no gap, keys are in order."""
    assert not load.failed, "\n".join(load.failed)
    with frazil.connect(addresses) as storage:
        for topic in load.topics:
            rows = [(one.offset, one.payload.decode()) for one in storage.topic(topic, create=False).read()]
            assert [offset for offset, _ in rows] == list(range(len(rows))), f"{topic}: offsets have a gap"
            _check_stored(load, topic, [text for _, text in rows])
            for kind in KINDS:
                _check_delivered(load, topic, kind, dict(rows))


def _check_stored(load: Load, topic: str, texts: list[str]) -> None:
    assert load.numbered[topic], "nothing was acknowledged: the test shows nothing"
    for offset, text in load.numbered[topic]:
        assert offset < len(texts), f"{topic}: {text} was acknowledged at {offset}, and lost"
        assert texts[offset] == text, f"{topic}: {text} was acknowledged at {offset}"
    numbered = [text for text in texts if text.startswith("n")]
    assert len(numbered) == len(set(numbered)), f"{topic}: a numbered row is there twice"
    assert not set(load.stock[topic]) - set(texts), f"{topic}: acknowledged to a stock client, and lost"
    for key in range(KEYS):
        own = [number for text in numbered if (number := int(text.split(":")[1])) % KEYS == key]
        assert own == sorted(own), f"{topic}: k{key} is out of order"


def _check_delivered(load: Load, topic: str, kind: SubType, stored: dict[int, str]) -> None:
    delivered = load.delivered[topic, kind]
    for offset, text in delivered:
        assert stored.get(offset) == text, f"{topic}: {text} was delivered as {offset}, where {stored.get(offset)} is"
    wanted = {text for _, text in load.numbered[topic]} | set(load.stock[topic])
    lost = wanted - {text for _, text in delivered}
    assert not lost, f"{topic}: {len(lost)} acknowledged messages were never delivered to {kind.name}"
    if kind is SubType.EXCLUSIVE:
        first = list(dict.fromkeys(offset for offset, _ in delivered))
        assert first == sorted(first), f"{topic}: delivered out of order"


def _check_temporary(error: Exception) -> None:
    """Only these may meet a client of a cluster whose brokers come and go."""
    if isinstance(error, grpc.aio.AioRpcError):
        temporary = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND)
        if error.code() not in temporary:
            raise error


def _reason(error: Exception) -> str:
    return f"{error.code()} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else repr(error)


async def _acknowledge(consumer: Consumer, message: pb.StreamMessage) -> None:
    """The client does not repeat acknowledgements. Without one, the next owner of the topic delivers again."""
    try:
        await _soon(consumer.ack(message))
    except grpc.aio.AioRpcError as error:
        _check_temporary(error)


async def _soon(answer: Awaitable[Answer]) -> Answer:
    return await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)


async def _client(url: str) -> DanubeClient:
    return await DanubeClientBuilder().service_url(url).build()


async def _producer(url: str, topic: str, name: str) -> Producer:
    builder = (await _client(url)).new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
    made = builder.with_options(ProducerOptions(**RETRIES)).build()
    await made.create()
    return made


@contextlib.asynccontextmanager
async def _consumer(
    url: str, topic: str, kind: SubType
) -> AsyncIterator[tuple[Consumer, asyncio.Queue[pb.StreamMessage]]]:
    builder = (await _client(url)).new_consumer().with_topic(topic).with_consumer_name("c")
    builder = builder.with_subscription(kind.name.lower()).with_subscription_type(kind)
    made = builder.with_options(ConsumerOptions(**RETRIES)).build()
    await _soon(made.subscribe())
    try:
        yield made, await made.receive()
    finally:
        await made.close()
