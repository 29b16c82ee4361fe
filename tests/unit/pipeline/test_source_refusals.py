"""What the Spark source refuses, and in which words: asked as Spark asks it, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.pipeline.source.source import FrazilSource

TOPIC = "/shop/orders"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "orders"}, "must have the form /namespace/topic"),
        ({"subscribe": " , "}, "option subscribe: name a topic"),
        ({"subscribe": "/no/such"}, "there is no topic /no/such"),
        ({"subscribePattern": "x"}, "option subscribePattern: give either it or subscribe"),
        ({"kafka.bootstrap.servers": "x"}, "option kafka.bootstrap.servers: there is no such option"),
        ({"startingOffsets": "soon"}, "option startingOffsets: 'soon' is neither"),
        ({"startingOffsets": "-3"}, "option startingOffsets: -3 is no offset"),
        ({"startingOffsets": '{"/shop/orders": 3}'}, "option startingOffsets: /shop/orders needs its partitions"),
        ({"startingOffsets": '{"/shop/orders": {"x": 3}}'}, "option startingOffsets: 'x' is no number"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "option startingTimestamp: give either"),
        ({"startingTimestamp": "today"}, "option startingTimestamp: 'today' is not a number"),
        ({"minPartitions": "0"}, "option minPartitions: '0' is not a number above 0"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss: 'perhaps' is neither true nor false"),
        ({"owner": "somewhere"}, "option owner: 'somewhere' is no address"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger: it is for streams"),
        ({"startingOffsets": "11"}, "has offsets 0 up to 10, not 11"),
        ({"endingOffsets": "11"}, "has offsets 0 up to 10, not 11"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish_many([b"tea"] * 10)
    source = FrazilSource({"subscribe": TOPIC, "data": str(tmp_path), **options})
    with pytest.raises(frazil.FrazilError, match=words):
        source.reader(source.schema()).partitions()
