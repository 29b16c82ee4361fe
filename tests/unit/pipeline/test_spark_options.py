"""What a user may ask of the Spark source, by the names of Kafka's; a wrong option is refused by its name."""

from __future__ import annotations

import pytest

from frazil.core.errors import InvalidInput, InvalidName
from frazil.core.names import TopicName
from frazil.pipeline.source.options import EARLIEST, LATEST, TRIGGER_DELAY_MS, AtTime, parse_options

SOME = {"subscribe": "/shop/orders"}


def test_what_is_not_said() -> None:
    options = parse_options(SOME)
    assert options.starting is None
    assert options.ending is None
    assert (options.offsets_per_trigger_min, options.offsets_per_trigger_max) == (None, None)
    assert options.trigger_delay_ms_max == TRIGGER_DELAY_MS
    assert options.include_headers
    assert options.fail_on_data_loss


def test_partitions_that_are_assigned() -> None:
    options = parse_options({"assign": '{"/shop/orders": [0, 2], "/shop/teas": [0]}'})
    wanted = ["/shop/orders-part-0", "/shop/orders-part-1", "/shop/orders-part-2", "/shop/teas", "/shop/orders-part-20"]
    assert [options.wants(TopicName.parse(name)) for name in wanted] == [True, False, True, True, False]


@pytest.mark.parametrize(("side", "rest"), [("starting", EARLIEST), ("ending", LATEST)])
def test_positions_by_time(side: str, rest: int) -> None:
    whole = getattr(parse_options({**SOME, f"{side}Timestamp": "5"}), side)
    assert whole.of("/shop/orders", 3) == AtTime(5_000)
    named = '{"/shop/orders": {"1": 7, "2": "8"}}'
    some = getattr(parse_options({**SOME, f"{side}OffsetsByTimestamp": named}), side)
    assert [some.of("/shop/orders", number) for number in (0, 1, 2)] == [rest, AtTime(7_000), AtTime(8_000)]


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("250", 250), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000), ("1d", 86_400_000)]
)
def test_durations_as_spark_has_them(text: str, milliseconds: int) -> None:
    options = parse_options({**SOME, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text})
    assert options.trigger_delay_ms_max == milliseconds


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option subscribe: give it, with topics like /shop/orders, or subscribePattern or assign"),
        ({**SOME, "assign": "{}"}, "option assign: give either it or subscribe, not both"),
        ({"assign": "{}"}, "option assign: name a partition"),
        ({"assign": "orders"}, "option assign: 'orders' is no JSON"),
        ({"assign": '{"/shop/orders": 0}'}, "option assign: /shop/orders needs the numbers of its partitions"),
        ({"assign": '{"/shop/orders": [-1]}'}, "option assign: -1 is no number of a partition"),
        ({"assign": '{"/shop/orders-part-1": [0]}'}, "option assign: /shop/orders-part-1 is a partition itself"),
        ({**SOME, "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"}, "startingTimestamp: give either"),
        ({**SOME, "endingOffsets": "1", "endingTimestamp": "1"}, "option endingTimestamp: give either it or endingOff"),
        ({**SOME, "endingTimestamp": "soon"}, "option endingTimestamp: 'soon' is not a number of milliseconds"),
        ({**SOME, "endingTimestamp": "9" * 20}, "option endingTimestamp: 9+ is not a number of milliseconds"),
        ({**SOME, "endingOffsetsByTimestamp": "[]"}, r"option endingOffsetsByTimestamp: '\[\]' is no JSON of topics"),
        (
            {**SOME, "startingOffsetsByTimestamp": '{"/shop/orders": {"0": -1}}'},
            "option startingOffsetsByTimestamp: -1 is not a number of milliseconds",
        ),
        ({**SOME, "minOffsetsPerTrigger": "0"}, "option minOffsetsPerTrigger: '0' is not a number above 0"),
        (
            {**SOME, "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "option minOffsetsPerTrigger: 6 is more than maxOffsetsPerTrigger, 5",
        ),
        ({**SOME, "maxTriggerDelay": "15m"}, "option maxTriggerDelay: it goes with minOffsetsPerTrigger"),
        (
            {**SOME, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "a while"},
            "option maxTriggerDelay: 'a while' is no duration",
        ),
        ({**SOME, "includeHeaders": "1"}, "option includeHeaders: '1' is neither true nor false"),
        ({**SOME, "group.id": "x"}, "option group.id: there is no such option; there are subscribe"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_options(given)


def test_a_wrong_name_of_a_topic_is_named() -> None:
    with pytest.raises(InvalidName, match="must have the form /namespace/topic"):
        parse_options({"assign": '{"orders": [0]}'})
