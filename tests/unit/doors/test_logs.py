"""Log lines: one event each, for people or as JSON, with the id of the call that caused them."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections.abc import Callable

import pytest

from frazil.node.request_ids import begin
from frazil.serve.logs import HumanLines, JsonLines


def record(**fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "frazil.serve", "levelname": "ERROR", "msg": "it broke", **fields})


def in_a_call(work: Callable[[], str], *headers: tuple[str, str]) -> str:
    def call() -> str:
        begin(headers)
        return work()

    return contextvars.copy_context().run(call)


def test_an_event_has_the_id_of_its_call() -> None:
    told = json.loads(in_a_call(lambda: JsonLines().format(record(topic="/a/b")), ("x-request-id", "seven")))
    assert (told["message"], told["topic"], told["request_id"]) == ("it broke", "/a/b", "seven")
    line = in_a_call(lambda: HumanLines().format(record()), ("x-request-id", "seven"))
    assert line.endswith("error   it broke (request seven)")


def test_an_event_of_no_call_has_none() -> None:
    assert "request_id" not in json.loads(JsonLines().format(record()))
    assert HumanLines().format(record()).endswith("it broke")


def test_an_id_that_the_event_was_given_stands() -> None:
    told = json.loads(in_a_call(lambda: JsonLines().format(record(request_id="mine")), ("x-request-id", "seven")))
    assert told["request_id"] == "mine"


@pytest.mark.parametrize("given", ["a b", "", "x" * 129, "line\nbreak", "ü"])
def test_an_id_that_could_forge_a_line_is_replaced(given: str) -> None:
    told = json.loads(in_a_call(lambda: JsonLines().format(record()), ("x-request-id", given)))
    assert told["request_id"] != given
    assert len(told["request_id"]) == 16


FORGED = "evil\n2026-01-01T00:00:00.000Z info    all is well\r\x1b[2K\x9b1A\u2028\u202e\x00"


def test_a_text_of_a_client_forges_no_line_and_moves_no_cursor() -> None:
    line = HumanLines().format(record(msg="consumer %s left, tab\there", args=(FORGED,)))
    assert line.isprintable() or line.replace("\t", "").isprintable()
    assert len(line.splitlines()) == 1
    assert "evil\\n2026-01-01" in line
    assert "\\x1b[2K\\x9b1A\\u2028\\u202e\\x00 left, tab\there" in line
    assert "ü 茶" in HumanLines().format(record(msg="ü 茶")), "what can be read stays"


def test_a_stack_trace_with_a_text_of_a_client_forges_no_line_either() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        lines = HumanLines().format(record(exc_info=sys.exc_info())).split("\n")
    assert len(lines) > 3
    assert all(line.startswith("  ") for line in lines[1:]), "only an event starts at the margin"
    assert all(line.isprintable() for line in lines)
