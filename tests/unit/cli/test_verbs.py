"""The verbs of the command line, run in this process: what they print, and the code they end with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.cli.main import exit_code, main
from frazil.core import errors

TOPIC = "/default/orders"


class Cli:
    """Runs command lines on one data folder."""

    def __init__(self, data: Path, captured: pytest.CaptureFixture[bytes]) -> None:
        self.data = data
        self._captured = captured
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> bytes:
        got = main([*arguments, "--data", str(self.data)])
        out, error = self._captured.readouterr()
        self.error = error.decode()
        assert got == code, self.error
        assert "Traceback" not in self.error
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture
def cli(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("FRAZIL_DATA", raising=False)
    monkeypatch.delenv("FRAZIL_CONFIG", raising=False)
    return Cli(tmp_path / "data", capsysbinary)


def lines_file(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "lines"
    path.write_bytes(content)
    return str(path)


# --- topics


def test_listing_and_describing_never_make_a_folder_or_a_topic(cli: Cli) -> None:
    assert cli.json("topics", "list") == []
    cli("topics", "describe", TOPIC, code=3)
    cli("consume", TOPIC, code=3)
    cli("topics", "delete", TOPIC, "--yes", code=3)
    cli("log", "check")
    cli("log", "check", TOPIC, code=3)
    assert not cli.data.exists()


def test_a_topic_is_made_described_listed_and_deleted(cli: Cli) -> None:
    cli("topics", "create", TOPIC, "--retention-age", "7d", "--retention-bytes", "10GiB")
    described = cli.json("topics", "describe", TOPIC)
    assert described["retention"] == {"age_ms": 7 * 86_400_000, "bytes": 10 * 2**30, "until_acked": False}
    assert described["messages"] == 0
    assert [one["topic"] for one in cli.json("topics", "list")] == [TOPIC]
    assert TOPIC in cli("topics", "list").decode()
    cli("topics", "create", TOPIC, code=1)
    cli("topics", "delete", TOPIC, "--yes")
    assert cli.json("topics", "list") == []


def test_partitions_are_made_described_with_their_sums_and_deleted(cli: Cli) -> None:
    parts = [f"{TOPIC}-part-{number}" for number in range(3)]
    made = cli.json("topics", "create", TOPIC, "--partitions", "3", "--retention-age", "7d")
    assert made == {"topic": TOPIC, "log_id": None, "typed": False, "partitions": parts}
    cli("produce", parts[1], "tea")
    cli("produce", parts[2], "milk")
    described = cli.json("topics", "describe", TOPIC)
    assert [(one["topic"], one["messages"]) for one in described["partitions"]] == [*zip(parts, (0, 1, 1), strict=True)]
    assert (described["messages"], described["end"], described["segments"]) == (2, 2, 2)
    assert described["retention"] == described["partitions"][0]["retention"]
    assert described["retention"]["age_ms"] == 7 * 86_400_000
    assert all(name in cli("topics", "describe", TOPIC).decode() for name in parts)
    assert [one["topic"] for one in cli.json("topics", "list")] == parts
    assert cli.json("topics", "describe", parts[0])["partitions"] == []
    cli("produce", TOPIC, "tea", code=1)
    cli("consume", TOPIC, code=3)
    assert "name one of them" in cli.error
    cli("topics", "retention", TOPIC, code=3)
    assert "name one of them" in cli.error
    assert cli.json("topics", "delete", TOPIC, "--yes") == {"topic": TOPIC, "deleted": True, "messages": 2}
    assert cli.json("topics", "list") == []
    assert "3 partitions" in cli("topics", "create", TOPIC, "--partitions", "3").decode()


def test_partitions_that_cannot_be_are_refused_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    columns = tmp_path / "columns.json"
    columns.write_text(json.dumps([{"name": "amount", "type": "int64"}]))
    for words in (("--partitions", "0"), ("--partitions", "101"), ("--partitions", "2", "--schema", str(columns))):
        cli("topics", "create", TOPIC, *words, code=2)
        assert "partitions" in cli.error
    assert not cli.data.exists()
    cli("topics", "create", TOPIC)
    cli("topics", "create", TOPIC, "--partitions", "2", code=1)
    assert "exists without partitions" in cli.error
    assert [one["topic"] for one in cli.json("topics", "list")] == [TOPIC]


def test_a_topic_may_be_kept_until_everyone_has_acknowledged(cli: Cli) -> None:
    cli("topics", "create", TOPIC, "--retain-until-acked", "--retention-age", "7d")
    retention = cli.json("topics", "describe", TOPIC)["retention"]
    assert retention == {"age_ms": 7 * 86_400_000, "bytes": None, "until_acked": True}
    assert "until everyone has acknowledged" in cli("topics", "describe", TOPIC).decode()


def test_a_topic_is_made_with_an_ack_level(cli: Cli) -> None:
    cli("topics", "create", TOPIC)
    cli("topics", "create", f"{TOPIC}-fast", "--ack", "memory")
    cli("topics", "create", f"{TOPIC}-many", "--ack", "memory", "--partitions", "2")
    assert cli.json("topics", "describe", TOPIC)["ack"] == "disk"
    assert cli.json("topics", "describe", f"{TOPIC}-fast")["ack"] == "memory"
    assert cli.json("topics", "describe", f"{TOPIC}-many")["ack"] == "memory"
    assert "memory" in cli("topics", "describe", f"{TOPIC}-fast").decode()
    for level in ("tape", "object"):
        cli("topics", "create", f"{TOPIC}-other", "--ack", level, code=2)
        assert "ack" in cli.error
    assert len(cli.json("topics", "list")) == 4


def test_a_typed_topic_is_made_from_json_or_from_an_arrow_schema(cli: Cli, tmp_path: Path) -> None:
    columns = [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "at", "type": "timestamp[us, UTC]"},
        {"name": "price", "type": "decimal(10, 2)"},
        {"name": "tags", "type": "list<string>"},
    ]
    by_hand = tmp_path / "schema.json"
    by_hand.write_text(json.dumps(columns))
    cli("topics", "create", "/default/json", "--schema", str(by_hand))
    shown = cli.json("topics", "describe", "/default/json")["schema"]
    assert [column["type"] for column in shown][:2] == ["int64", "timestamp[us, tz=UTC]"]
    assert [column["nullable"] for column in shown] == [False, True, True, True]
    by_machine = tmp_path / "schema.arrow"
    by_machine.write_bytes(pa.schema([("id", pa.int64())]).serialize().to_pybytes())
    cli("topics", "create", "/default/arrow", "--schema", str(by_machine))
    assert len(cli.json("topics", "describe", "/default/arrow")["schema"]) == 1


@pytest.mark.parametrize(
    "content",
    ["", "nonsense", "[1]", '[{"name":"a"}]', '[{"name":"a","type":"wat"}]', "[{]", '[{"name":"_a","type":"int64"}]'],
)
def test_a_bad_schema_file_is_explained(cli: Cli, tmp_path: Path, content: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(content)
    cli("topics", "create", TOPIC, "--schema", str(path), code=2)
    assert cli.error.startswith("error: ")
    assert cli.json("topics", "list") == []


@pytest.mark.parametrize("age", ["7", "7x", "-1d", "", "0s", "d"])
def test_a_time_without_a_known_unit_is_refused(cli: Cli, age: str) -> None:
    cli("topics", "create", TOPIC, f"--retention-age={age}", code=2)


# --- produce and consume


def test_a_message_goes_in_and_comes_out(cli: Cli) -> None:
    made = cli.json("produce", TOPIC, "tea", "--key", "anna", "-a", "a=1", "-a", "b=x=y")
    assert made == {"topic": TOPIC, "messages": 1, "first_offset": 0, "last_offset": 0}
    (line,) = cli("consume", TOPIC, "--json").splitlines()
    message = json.loads(line)
    assert (message["payload"], message["key"]) == ("tea", "anna")
    assert message["attributes"] == {"a": "1", "b": "x=y"}


def test_each_line_of_a_file_is_a_message_and_the_last_needs_no_line_end(cli: Cli, tmp_path: Path) -> None:
    cli("produce", TOPIC, "--file", lines_file(tmp_path, b"a\n\nb\r\n\xff\x00c"))
    assert cli("consume", TOPIC, "-f", r"%o=%v;") == b"0=a;1=;2=b;3=\xff\x00c;"


def test_a_large_file_goes_in_few_batches(cli: Cli, tmp_path: Path) -> None:
    lines = [b"%d" % number + b"x" * 200 for number in range(20_000)]
    made = cli.json("produce", TOPIC, "--file", lines_file(tmp_path, b"\n".join(lines)))
    assert made["messages"] == 20_000
    assert cli("consume", TOPIC).splitlines() == lines
    assert cli.json("log", "check")[0]["frames"] < 20


def test_lines_are_split_into_key_and_message(cli: Cli, tmp_path: Path) -> None:
    cli("produce", TOPIC, "--file", lines_file(tmp_path, b"k1:a:b\nk2:\n"), "-K", ":")
    assert cli("consume", TOPIC, "-f", r"%k|%v\n") == b"k1|a:b\nk2|\n"
    cli("produce", TOPIC, "--file", lines_file(tmp_path, b"k:v\nnothing\n"), "-K", ":", code=2)
    assert "line 2" in cli.error


def test_rows_of_a_typed_topic_are_json_both_ways(cli: Cli, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('[{"name": "id", "type": "int64", "nullable": false}, {"name": "raw", "type": "binary"}]')
    cli("topics", "create", TOPIC, "--schema", str(schema))
    cli("produce", TOPIC, "--file", lines_file(tmp_path, b'{"id": 1, "raw": "x"}\n{"id": 2}\n'))
    assert [json.loads(line) for line in cli("consume", TOPIC).splitlines()] == [
        {"id": 1, "raw": "x"},
        {"id": 2, "raw": None},
    ]
    (first, _) = cli("consume", TOPIC, "--json").splitlines()
    assert json.loads(first)["row"] == {"id": 1, "raw": "x"}
    for bad in (b"nonsense", b"[1]", b'{"id": "x"}', b'{"id": null}', b'{"id": 1, "other": 2}'):
        cli("produce", TOPIC, "--file", lines_file(tmp_path, bad), code=2)
    cli("produce", TOPIC, '{"id": 3}', "--key", "k", code=2)
    assert cli.json("topics", "describe", TOPIC)["end"] == 2


def test_what_was_published_before_a_refused_line_is_told(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("wal: {message_bytes_max: 1000, batch_bytes_max: 4000}")
    path = lines_file(tmp_path, b"ok\n" * 2000 + b"x" * 5000 + b"\n")
    cli("produce", TOPIC, "--file", path, "--config", str(config), code=2)
    assert "were published" in cli.error
    assert cli.json("topics", "describe", TOPIC)["end"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", TOPIC, "x", "--file", "y"],
        ["produce", TOPIC, "x", "-k", "a", "-K", "b"],
        ["produce", TOPIC, "x", "-a", "novalue"],
        ["produce", TOPIC, "--file", "absent"],
        ["produce", "/../x", "x"],
        ["consume", TOPIC, "-o", "nowhere"],
        ["consume", TOPIC, "-o", "@yesterday"],
        ["consume", TOPIC, "-f", "%q"],
        ["consume", TOPIC, "-f", "%"],
        ["consume", TOPIC, "-f", "x", "--json"],
        ["consume", TOPIC, "-n", "-1"],
        ["consume", TOPIC, "-o", "99"],
        ["topics", "create", "/a/b", "--schema", "absent"],
        ["log", "inspect", "absent"],
        ["nothing"],
        ["topics", "nothing"],
        ["serve", "--port", "70000"],
    ],
)
def test_a_wrong_call_is_one_line_and_code_two(cli: Cli, arguments: list[str]) -> None:
    cli("topics", "create", TOPIC)
    cli(*arguments, code=2)
    assert cli.error.startswith("error: ") or "--json" in arguments
    assert cli.error.count("\n") == 1
    cli(*arguments, *([] if "--json" in arguments else ["--json"]), code=2)
    assert set(json.loads(cli.error)) >= {"error", "message"}


def test_a_topic_is_not_made_by_produce_if_told_not_to(cli: Cli) -> None:
    cli("produce", TOPIC, "x", "--no-create", code=3)
    assert not cli.data.exists()


def test_consume_starts_where_it_is_told(cli: Cli) -> None:
    for text in "abcd":
        cli("produce", TOPIC, text)
    assert cli("consume", TOPIC, "-o", "2") == b"c\nd\n"
    assert cli("consume", TOPIC, "-o", "start", "-n", "1") == b"a\n"
    assert cli("consume", TOPIC, "-n", "0") == b""
    assert cli("consume", TOPIC, "-o", "end") == b""
    times = [json.loads(line)["append_time"] for line in cli("consume", TOPIC, "--json").splitlines()]
    assert cli("consume", TOPIC, "-o", f"@{times[2]}") == b"c\nd\n"
    stamp = int(cli("consume", TOPIC, "-o", "3", "-f", "%T"))
    assert cli("consume", TOPIC, "-o", f"@{stamp}").endswith(b"d\n")
    assert cli("consume", TOPIC, "-o", "@2000-01-01", "-n", "1") == b"a\n"
    assert cli("consume", TOPIC, "-o", "@2100-01-01T00:00:00+02:00") == b""


def test_following_ends_at_the_count(cli: Cli) -> None:
    cli("produce", TOPIC, "a")
    assert cli("consume", TOPIC, "--follow", "-n", "1") == b"a\n"


def test_bytes_that_are_no_text_are_raw_in_a_format_and_base64_in_json(cli: Cli, tmp_path: Path) -> None:
    cli("produce", TOPIC, "--file", lines_file(tmp_path, b"\xff\xfe\n"))
    assert cli("consume", TOPIC, "-f", r"\x41%%\t%t %s\0") == b"A%\t" + TOPIC.encode() + b" \xff\xfe\0"
    message = json.loads(cli("consume", TOPIC, "--json"))
    assert message["payload_base64"] == "//4="
    assert "payload" not in message


# --- the log


def _segment(cli: Cli) -> Path:
    (segment,) = (cli.data / "log" / "default" / "orders").glob("*.wal")
    return segment


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_inspect_shows_every_frame_and_where_a_bad_one_is(cli: Cli) -> None:
    for text in "abc":
        cli("produce", TOPIC, text)
    shown = cli.json("log", "inspect", str(_segment(cli)))
    assert [(frame["kind"], frame["offset"], frame["rows"]) for frame in shown["frames"]] == [
        ("schema", 0, 0), ("rows", 0, 1), ("rows", 1, 1), ("rows", 2, 1),
    ]  # fmt: skip
    assert shown["topic"] == TOPIC
    bad = shown["frames"][2]["position"]
    _flip(_segment(cli), bad + 40)
    out = cli("log", "inspect", str(_segment(cli)), code=5).decode()
    assert TOPIC in out
    assert f"byte {bad}" in cli.error
    assert "checksum" in cli.error


def test_inspect_shows_who_numbered_the_rows(cli: Cli) -> None:
    with frazil.open(cli.data) as storage:
        topic = storage.topic(TOPIC)
        epoch = topic.open_producer("till 7").epoch
        topic.publish_many(["a", "b"], sent=frazil.Sent("till 7", epoch, 0))
        topic.publish("c")
    shown = cli.json("log", "inspect", str(_segment(cli)))
    assert shown["producers"] == [{"producer": "till 7", "epoch": 0, "next_sequence": 0}]
    sent = {"offset": 0, "rows": 2, "producer": "till 7", "epoch": 0, "sequence": 0}
    assert [frame["sent"] for frame in shown["frames"]][:3] == [[], [sent], []]
    first = _segment(cli)
    assert "till 7 epoch 0 #0-1" in cli("log", "inspect", str(first)).decode()
    with frazil.open(frazil.Settings.model_validate({"data": cli.data, "wal": {"max_file_age_ms": 1}})) as storage:
        storage.topic(TOPIC).publish_many(["d"], sent=frazil.Sent("till 7", epoch, 2))
    newest = max(first.parent.glob("*.wal"))
    known = {"producer": "till 7", "epoch": 0, "next_sequence": 2}
    assert cli.json("log", "inspect", str(newest))["producers"] == [known]
    assert "producers when it began" in cli("log", "inspect", str(newest)).decode()


def test_check_names_the_first_bad_byte_and_repair_mends_it(cli: Cli) -> None:
    for text in "abc":
        cli("produce", TOPIC, text)
    assert cli.json("log", "check")[0]["state"] == "ok"
    bad = cli.json("log", "inspect", str(_segment(cli)))["frames"][2]["position"]
    _flip(_segment(cli), bad + 40)
    assert f"at byte {bad}" in cli("log", "check", code=5).decode()
    cli("consume", TOPIC, code=5)
    planned = cli.json("log", "repair", TOPIC, "--dry-run")
    assert (planned["dry_run"], planned["end"], planned["rows_cut"]) == (True, 1, 1)
    cli("log", "check", code=5)
    told = cli("log", "repair", TOPIC, "--yes").decode()
    assert "1 valid row after the bad byte" in told
    assert "assigned again" in told
    assert cli.json("log", "check", TOPIC)[0]["state"] == "ok"
    assert cli("consume", TOPIC) == b"a\n"
    assert b"nothing to repair" in cli("log", "repair", TOPIC)
    assert any(one["name"] == "set aside" and one["state"] == "warn" for one in cli.json("doctor"))


# --- the rest


def test_a_folder_in_use_is_told_with_the_pid_of_its_owner(cli: Cli) -> None:
    import os

    with frazil.open(cli.data) as storage:
        storage.topic(TOPIC).publish("tea")
        for arguments in (["produce", TOPIC, "x"], ["topics", "create", "/a/b"], ["log", "repair", TOPIC, "--yes"]):
            cli(*arguments, code=6)
            assert f"process {os.getpid()}" in cli.error
        assert cli.json("topics", "describe", TOPIC)["end"] == 1
        assert cli.json("topics", "list")[0]["messages"] == 1
        assert cli.json("log", "check")[0]["rows"] == 1
        assert any(str(os.getpid()) in one["text"] for one in cli.json("doctor") if one["name"] == "owner")


def test_doctor_is_content_with_a_healthy_machine_and_fails_on_a_broken_record(cli: Cli) -> None:
    assert {one["state"] for one in cli.json("doctor")} <= {"ok", "warn"}
    assert not cli.data.exists()
    cli("produce", TOPIC, "x")
    (cli.data / "log" / "~ends").write_bytes(b"garbage")
    assert b"fail records" in cli("doctor", code=1)


def test_every_kind_of_error_has_its_exit_code() -> None:
    assert exit_code(errors.OffsetOutOfRange("/a/b", 9, 0, 1)) == 2
    assert exit_code(errors.TopicNotFound("/a/b")) == 3
    assert exit_code(errors.DiskFull("x", "full")) == 4
    assert exit_code(errors.CorruptLog("x", 0, "bad")) == 5
    assert exit_code(errors.LogFailed("/a/b", "bad")) == 5
    assert exit_code(errors.FolderInUse("x", 1)) == 6
    assert exit_code(errors.TopicExists("/a/b")) == 1


def test_the_folder_of_a_flag_beats_the_environment_and_that_the_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frazil.core.settings import resolve_settings

    config = tmp_path / "config.yaml"
    config.write_text(f"data: {tmp_path / 'of-file'}\nwal: {{committers: 2}}\n")
    assert resolve_settings(None, config).data == tmp_path / "of-file"
    monkeypatch.setenv("FRAZIL_DATA", str(tmp_path / "of-environment"))
    assert resolve_settings(None, config).data == tmp_path / "of-environment"
    assert resolve_settings(tmp_path / "of-flag", config).data == tmp_path / "of-flag"
    monkeypatch.setenv("FRAZIL_CONFIG", str(config))
    assert resolve_settings(tmp_path / "of-flag").wal.committers == 2
    monkeypatch.delenv("FRAZIL_DATA")
    assert resolve_settings().data == tmp_path / "of-file"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"frazil {frazil.__version__}\n"
