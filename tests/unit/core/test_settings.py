"""One file and the environment: every key is checked, and every message names the key and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.core.errors import InvalidSettings
from frazil.core.settings import Settings, SyncMode, load_settings, make_settings, resolve_settings
from frazil.core.settings.security import ClientSettings

DANUBE = """
storage:
  type: iceberg
  iceberg_config:
    catalog:
      type: rest
      uri: "http://localhost:8181"
    object_store:
      type: s3
      bucket: "danube-data"
      region: "us-west-2"
    wal:
      base_path: "/var/lib/danube/wal"
      max_file_size: 67108864  # 64MB
      sync_mode: periodic
    writer:
      batch_size: 1000
      flush_interval_ms: 5000
      max_memory_bytes: 134217728  # 128MB
    reader:
      poll_interval_ms: 1000
      max_concurrent_reads: 10
      prefetch_size: 5
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRAZIL_DATA", "FRAZIL_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def refused(values: dict[str, Any], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidSettings) as error:
        make_settings(values, "frazil.yaml", environment)
    return error.value.message


def test_the_file_of_the_storage_that_was_before_works_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "danube.yaml"
    file.write_text(DANUBE, encoding="utf-8")
    settings = load_settings(file)
    assert settings.catalog.type == "rest"
    assert settings.catalog.uri is not None
    assert settings.catalog.uri.get_secret_value() == "http://localhost:8181"
    assert (settings.object_store.type, settings.object_store.bucket) == ("s3", "danube-data")
    assert settings.object_store.region == "us-west-2"
    assert settings.log_folder == Path("/var/lib/danube/wal")
    assert (settings.wal.max_file_size, settings.wal.sync_mode) == (67108864, SyncMode.PERIODIC)
    writer = settings.writer
    assert (writer.batch_size, writer.flush_interval_ms, writer.max_memory_bytes) == (1000, 5000, 134217728)
    reader = settings.reader
    assert (reader.poll_interval_ms, reader.max_concurrent_reads, reader.prefetch_size) == (1000, 10, 5)


def test_the_settings_of_a_file_backed_wal_work_as_written() -> None:
    wal = {"dir": "/tmp/wal", "file_name": "wal.log", "cache_capacity": 1024, "fsync_interval_ms": 5}
    settings = make_settings({"wal": {**wal, "max_batch_bytes": 8 * 1024}})
    assert settings.log_folder == Path("/tmp/wal/wal.log")
    assert (settings.wal.cache_capacity, settings.wal.cache_bytes) == (1024, 64 * 1024 * 1024)
    assert (settings.wal.fsync_interval_ms, settings.wal.max_batch_bytes) == (5, 8192)


def test_dir_and_base_path_are_one_setting() -> None:
    assert make_settings({"wal": {"dir": "/a"}}).log_folder == Path("/a")
    assert make_settings({"wal": {"dir": "/a", "base_path": "/a"}}).log_folder == Path("/a")
    assert make_settings({"wal": {"base_path": "/a", "file_name": "b"}}).log_folder == Path("/a/b")
    message = refused({"wal": {"base_path": "/a"}}, {"FRAZIL_WAL__DIR": "/b"})
    assert message.startswith("frazil.yaml: wal: dir and base_path are two names of one setting")


@pytest.mark.parametrize("key", ["dir", "base_path"])
def test_a_log_in_memory_has_no_folder(key: str) -> None:
    message = refused({"data": None, "wal": {key: "/a"}})
    assert "data: null keeps the log in memory" in message
    assert f"wal.{key}" in message


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a b", "~a", "a\n", "x" * 129])
def test_a_file_name_is_one_name(name: str) -> None:
    assert refused({"wal": {"dir": "/a", "file_name": name}}).startswith("frazil.yaml: wal.file_name: must be a single")


def test_a_cache_capacity_in_bytes_is_not_taken_for_a_number_of_messages() -> None:
    message = refused({"wal": {"cache_capacity": 64 * 1024 * 1024}})
    assert message.startswith("frazil.yaml: wal.cache_capacity: counts messages")
    assert "use cache_bytes" in message


def test_a_section_given_in_both_spellings_is_named() -> None:
    sections = {"writer": {"batch_size": 5}}
    message = refused({"writer": {}, "storage": {"type": "iceberg", "iceberg_config": sections}})
    assert "writer is given twice" in message
    assert "storage.iceberg_config.writer" in message


@pytest.mark.parametrize("storage", [{"type": "disk"}, {}, {"iceberg_config": {}}])
def test_the_only_storage_is_iceberg(storage: dict[str, Any]) -> None:
    assert "storage.type: must be iceberg" in refused({"storage": storage})


@pytest.mark.parametrize(
    ("values", "key", "advice"),
    [
        ({"writer": {"batchsize": 1}}, "writer.batchsize", "did you mean batch_size?"),
        ({"wirter": {}}, "wirter", "did you mean writer?"),
        ({"writer": {"batch_size": "many"}}, "writer.batch_size", "valid integer"),
        ({"writer": {"batch_size": 0}}, "writer.batch_size", "greater than 0"),
        ({"writer": 5}, "writer", "a section with keys of its own"),
        ({"catalog": {"type": "hive"}}, "catalog.type", "'sql', 'rest', 'glue', 'memory' or 'named'"),
        ({"catalog": {"type": "rest"}}, "catalog", "uri is needed"),
        ({"object_store": {"type": "s3"}}, "object_store", "bucket is needed"),
        ({"wal": {"retention": {"age": 5}}}, "wal.retention.age", "did you mean age_ms?"),
        ({"storage": {"type": "iceberg", "iceberg": {}}}, "storage.iceberg", "did you mean iceberg_config?"),
        (
            {"storage": {"type": "iceberg", "iceberg_config": {"writer": {"batch": 1}}}},
            "storage.iceberg_config.writer.batch",
            "did you mean batch_size?",
        ),
        (
            {"storage": {"type": "iceberg", "iceberg_config": {"http": {}}}},
            "storage.iceberg_config.http",
            "there are catalog, object_store, wal, writer, reader",
        ),
        ({"wal": {"file_name": "wal.log"}}, "wal", "file_name is a folder below dir: give dir too"),
        ({"wal": {"cache_capacity": -1}}, "wal.cache_capacity", "greater than or equal to 0"),
        ({"storage": 3}, "storage", "a section with keys of its own"),
        ({"catalog": {"properties": {"s3.anonymous": True}}}, "catalog.properties.s3.anonymous", "valid string"),
    ],
)
def test_a_message_names_the_key_and_what_to_do(values: dict[str, Any], key: str, advice: str) -> None:
    message = refused(values)
    assert message.startswith(f"frazil.yaml: {key}: ")
    assert advice in message


def test_every_setting_can_be_given_by_the_environment() -> None:
    settings = make_settings(
        {"writer": {"batch_size": 5, "flush_interval_ms": 7}, "wal": {"max_file_age_ms": 9}},
        environment={
            "FRAZIL_WRITER__BATCH_SIZE": "6",
            "FRAZIL_CATALOG__TYPE": "rest",
            "FRAZIL_CATALOG__URI": "http://127.0.0.1:1",
            "FRAZIL_WAL__RETENTION__AGE_MS": "1000",
            "FRAZIL_WAL__MAX_FILE_AGE_MS": "null",
            "FRAZIL_OBJECT_STORE__PATH_STYLE": "false",
            "FRAZIL_OBJECT_STORE__PROPERTIES__S3__CONNECT_TIMEOUT": "5",
            "FRAZIL_READER__PREFETCH_SIZE": "",
            "FRAZIL_CONFIG": "elsewhere.yaml",
            "PATH": "/bin",
        },
    )
    assert (settings.writer.batch_size, settings.writer.flush_interval_ms) == (6, 7)
    assert settings.catalog.uri is not None
    assert settings.wal.retention.age_ms == 1000
    assert settings.wal.max_file_age_ms is None
    assert settings.object_store.path_style is False
    assert settings.object_store.properties["s3.connect-timeout"].get_secret_value() == "5"
    assert settings.reader.prefetch_size == 5


@pytest.mark.parametrize("door", ["http", "flight", "broker"])
def test_the_certificate_of_a_door_can_be_given_by_the_environment(door: str) -> None:
    names = {name: f"FRAZIL_{door.upper()}__TLS__{name.upper()}" for name in ("certificate", "key")}
    settings = make_settings({}, environment={variable: f"{name}.pem" for name, variable in names.items()})
    found = getattr(settings, door).tls
    assert (str(found.certificate), str(found.key)) == ("certificate.pem", "key.pem")
    assert "given both or not at all" in refused({}, {names["key"]: "key.pem"})
    assert f"FRAZIL_{door.upper()}__TLS__CLIENT_CA" in refused({}, {f"FRAZIL_{door.upper()}__TLS__CLIENT_C": "x"})
    assert "client_ca" in refused({door: {"tls": {"client_c": "x"}}})


def test_the_environment_stands_above_the_other_spelling_too() -> None:
    storage = {"type": "iceberg", "iceberg_config": {"writer": {"batch_size": 5, "flush_interval_ms": 7}}}
    settings = make_settings({"storage": storage}, environment={"FRAZIL_WRITER__BATCH_SIZE": "6"})
    assert (settings.writer.batch_size, settings.writer.flush_interval_ms) == (6, 7)


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("FRAZIL_WRITER__BATCHSIZE", "1", "did you mean FRAZIL_WRITER__BATCH_SIZE?"),
        ("FRAZIL_WRITTER__BATCH_SIZE", "1", "did you mean FRAZIL_WRITER?"),
        ("FRAZIL_WRITER__BATCH_SIZE__MAX", "1", "no such setting; remove it"),
        ("FRAZIL_WAL__RETENTION", "1", "names a section"),
        ("FRAZIL_WRITER__BATCH_SIZE", "many", "valid integer"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, advice: str) -> None:
    message = refused({}, {variable: value})
    assert variable in message
    assert advice in message


def test_a_command_line_sees_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRAZIL_WRITER__BATCH_SIZE", "17")
    assert resolve_settings(tmp_path).writer.batch_size == 17
    file = tmp_path / "frazil.yaml"
    file.write_text("writer: {batch_size: 3, flush_interval_ms: 11}", encoding="utf-8")
    settings = resolve_settings(tmp_path, file)
    assert (settings.writer.batch_size, settings.writer.flush_interval_ms) == (17, 11)


SECRET = "s3cret-of-a-test"


def secretive() -> dict[str, Any]:
    return {
        "catalog": {
            "uri": f"postgresql://me:{SECRET}@db/x",
            "token": SECRET,
            "credential": f"id:{SECRET}",
            "properties": {"s3.secret-access-key": SECRET},
        },
        "object_store": {"access_key_id": SECRET, "secret_access_key": SECRET, "session_token": SECRET},
    }


def test_secrets_are_not_shown() -> None:
    settings = make_settings(secretive())
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump())):
        assert SECRET not in shown


def test_an_error_beside_a_secret_does_not_show_it() -> None:
    values = secretive()
    values["catalog"]["type"] = "nothing"
    values["object_store"]["secret_access_key"] = [SECRET]
    values["catalog"]["tokens"] = SECRET
    message = refused(values, {"FRAZIL_WRITER__BATCH_SIZE": SECRET})
    assert SECRET not in message
    assert "object_store.secret_access_key" in message


@pytest.mark.parametrize(
    "client", [{"token": SECRET, "key": "k"}, {"token": SECRET, "token_file": "f"}, {"token": [SECRET]}]
)
def test_the_error_of_a_group_made_in_python_does_not_show_it_either(client: dict[str, Any]) -> None:
    for make in (lambda: ClientSettings(**client), lambda: Settings(client=client)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"token|certificate") as raised:
            make()
        assert SECRET not in str(raised.value) + repr(raised.value)


def test_settings_stay_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().writer.batch_size = 3  # type: ignore[misc]
