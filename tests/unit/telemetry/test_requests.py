"""Requests are checked and counted, whole or in pieces, with the same result."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from otlp_random import random_request

from frazil.core.errors import InvalidInput, RequestTooLarge
from frazil.telemetry import requests
from frazil.telemetry.protobuf_bytes import BYTES, sized, tag, varint
from frazil.telemetry.requests import REQUESTS, ItemLimits, RequestCheck, count_items
from frazil.telemetry.signals import Signal

LIMITS = ItemLimits(100_000, 4 * 2**20)


def items(signal: Signal, request: Any) -> int:
    found = 0
    for resource in getattr(request, request.DESCRIPTOR.fields[0].name):
        for scope in getattr(resource, f"scope_{'spans' if signal is Signal.TRACES else signal.value}"):
            if signal is Signal.METRICS:
                kinds = [(metric, metric.WhichOneof("data")) for metric in scope.metrics]
                found += sum(len(getattr(metric, kind).data_points) for metric, kind in kinds if kind)
            else:
                found += len(scope.spans if signal is Signal.TRACES else scope.log_records)
    return found


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("piece_bytes", [2**18, 64, 1])
def test_the_items_of_any_request_are_counted(
    signal: Signal, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", piece_bytes)
    rng = random.Random(18)
    for _ in range(100):
        request = random_request(signal, rng)
        assert count_items(signal, request.SerializeToString(), LIMITS) == items(signal, request)


@pytest.mark.parametrize("signal", list(Signal))
def test_cut_and_flipped_requests_are_refused_in_pieces_as_they_are_as_a_whole(
    signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    refused = 0
    for _ in range(300):
        body = bytearray(random_request(signal, rng).SerializeToString() + b"\x0a\x00")
        for _ in range(rng.randrange(1, 3)):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        data, found = bytes(body[: rng.randrange(1, len(body) + 1)]), []
        for piece_bytes in (2**18, 16):
            monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", piece_bytes)
            try:
                found.append(count_items(signal, data, LIMITS))
            except InvalidInput:
                found.append(-1)
        if not _has_group(data):
            assert found[0] == found[1], data.hex()
        refused += found[0] < 0
    assert refused > 50


@pytest.mark.parametrize("tag_bytes", [1, 4, 5, 6, 10])
@pytest.mark.parametrize("size_bytes", [1, 4, 5, 6, 10])
def test_numbers_of_more_bytes_than_they_need_are_refused_in_pieces_as_in_the_whole(
    tag_bytes: int, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tag(2, BYTES) + sized(b"")
    for number in (2, 1):
        found = padded(tag(number, BYTES), tag_bytes) + padded(varint(len(found)), size_bytes) + found
    monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", 1)
    if max(tag_bytes, size_bytes) <= 5:
        assert count_items(Signal.TRACES, found, LIMITS) == 1
        assert items(Signal.TRACES, REQUESTS[Signal.TRACES].FromString(found)) == 1
        return
    with pytest.raises(DecodeError):
        REQUESTS[Signal.TRACES].FromString(found)
    with pytest.raises(InvalidInput):
        count_items(Signal.TRACES, found, LIMITS)


def padded(number: bytes, length: int) -> bytes:
    """The same number in more bytes."""
    if len(number) >= length:
        return number
    return bytes([*(byte | 128 for byte in number), *[128] * (length - len(number) - 1), 0])


def _has_group(data: bytes) -> bool:
    """Whether the whole has groups, which no sender of OTLP writes: in pieces they are refused."""
    return any(byte & 7 in (3, 4) for byte in data)


def test_a_piece_is_no_larger_than_its_limit_unless_it_is_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", 100)
    request = REQUESTS[Signal.TRACES]()
    scope = request.resource_spans.add().scope_spans.add()
    for size in (10, 10, 500, 10, 10, 10):
        scope.spans.add(name="x" * size)
    assert list(RequestCheck(Signal.TRACES, request.SerializeToString(), LIMITS).pieces()) == [2, 1, 3]


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("piece_bytes", [2**18 - 1, 64])
def test_items_that_are_too_large_are_left_out_and_all_others_kept(
    signal: Signal, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", piece_bytes)
    rng, left_out = random.Random(23), 0
    for _ in range(60):
        request = random_request(signal, rng)
        wanted, rejected = copy.deepcopy(request), 0
        for scope, reference in zip(scopes(signal, request), scopes(signal, wanted), strict=True):
            for at in reversed(range(len(reference))):
                if rng.random() < 0.3:
                    setattr(scope[at], "name" if signal is not Signal.LOGS else "event_name", "x" * 300_000)
                    kind = scope[at].WhichOneof("data") if signal is Signal.METRICS else None
                    points = len(getattr(scope[at], kind).data_points) if kind else 0
                    rejected += points if signal is Signal.METRICS else 1
                    del reference[at]
        check = RequestCheck(signal, request.SerializeToString(), ItemLimits(100_000, 200_000))
        assert sum(check.pieces()) == items(signal, wanted)
        assert check.rejected == rejected
        assert REQUESTS[signal].FromString(check.kept()) == wanted
        left_out += rejected
    assert left_out > 10


def test_an_item_is_too_large_in_a_request_of_any_size() -> None:
    request = REQUESTS[Signal.LOGS]()
    scope = request.resource_logs.add().scope_logs.add()
    for size in (10, 2_000, 10):
        scope.log_records.add(event_name="x" * size)
    check = RequestCheck(Signal.LOGS, request.SerializeToString(), ItemLimits(10, 1_000))
    assert (sum(check.pieces()), check.rejected) == (2, 1)
    del scope.log_records[1]
    assert check.kept() == request.SerializeToString()
    assert len(check.kept()) <= check.kept_bytes_max < len(check.kept()) + 10


def test_a_metric_without_points_that_is_too_large_is_left_out_too() -> None:
    request = REQUESTS[Signal.METRICS]()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="kept").gauge.data_points.add(as_int=1)
    scope.metrics.add(name="x" * 2_000)
    check = RequestCheck(Signal.METRICS, request.SerializeToString(), ItemLimits(10, 1_000))
    assert (sum(check.pieces()), check.rejected, check.is_cut) == (1, 0, True)
    del scope.metrics[1]
    assert check.kept() == request.SerializeToString()


def test_points_that_are_left_out_are_counted_as_protobuf_merges_them() -> None:
    """Two parts of one kind are one message; of two kinds the last one counts."""
    part = REQUESTS[Signal.METRICS]()
    metric = part.resource_metrics.add().scope_metrics.add().metrics.add()
    gauge, sums = metric.gauge.SerializeToString, metric.sum.SerializeToString
    metric.gauge.data_points.add(as_int=1)
    one_gauge = tag(5, BYTES) + sized(gauge())
    metric.sum.data_points.add(as_int=1)
    one_sum = tag(7, BYTES) + sized(sums())
    name = tag(1, BYTES) + sized(b"x" * 2_000)
    for parts, points in ((one_gauge * 3, 3), (one_gauge * 2 + one_sum, 1), (one_gauge + one_sum + one_gauge, 1)):
        found = name + parts
        for number in (2, 2, 1):
            found = tag(number, BYTES) + sized(found)
        check = RequestCheck(Signal.METRICS, found, ItemLimits(10, 1_000))
        assert (sum(check.pieces()), check.rejected) == (0, points)
        assert items(Signal.METRICS, REQUESTS[Signal.METRICS].FromString(found)) == points


def scopes(signal: Signal, request: Any) -> list[Any]:
    """The items of each scope."""
    inner = {Signal.TRACES: "spans", Signal.LOGS: "log_records", Signal.METRICS: "metrics"}[signal]
    return [
        getattr(scope, inner)
        for resource in getattr(request, f"resource_{signal.value if signal is not Signal.TRACES else 'spans'}")
        for scope in getattr(resource, f"scope_{signal.value if signal is not Signal.TRACES else 'spans'}")
    ]


def test_a_resource_that_is_too_large_is_of_many_items() -> None:
    request = REQUESTS[Signal.TRACES]()
    resource = request.resource_spans.add()
    resource.scope_spans.add().spans.add(name="x")
    resource.resource.attributes.add(key="a").value.string_value = "x" * 300_000
    with pytest.raises(RequestTooLarge) as told:
        count_items(Signal.TRACES, request.SerializeToString(), ItemLimits(10, 200_000))
    assert told.value.setting == "telemetry.otlp.item_bytes_max"


def test_too_many_items_are_refused_before_they_are_parsed() -> None:
    empty = tag(2, BYTES) + sized(b"")
    for body in (empty * 300_000, tag(2, BYTES) + sized(empty * 300_000)):
        request = tag(1, BYTES) + sized(body)
        with pytest.raises(RequestTooLarge) as told:
            count_items(Signal.TRACES, request, ItemLimits(10_000, 2**20))
        assert told.value.setting == "telemetry.otlp.items_max"


def test_messages_nest_as_deep_in_pieces_as_in_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def accepts(levels: int) -> bool:
        value = b""
        for _ in range(levels):
            value = tag(5, BYTES) + sized(tag(1, BYTES) + sized(value))
        found = tag(9, BYTES) + sized(tag(1, BYTES) + sized(b"k") + tag(2, BYTES) + sized(value))
        for number in (2, 2, 1):
            found = tag(number, BYTES) + sized(found)
        try:
            return count_items(Signal.TRACES, found, LIMITS) == 1
        except InvalidInput:
            return False

    whole = [accepts(levels) for levels in range(30, 70)]
    monkeypatch.setattr(requests, "WHOLE_BYTES_MAX", 10)
    assert [accepts(levels) for levels in range(30, 70)] == whole
    assert whole[0]
    assert not whole[-1]
