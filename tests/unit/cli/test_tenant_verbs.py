"""`frazil tenants` on a folder without a server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.cli.main import main
from frazil.cli.telemetry.tenant_options import given_settings
from frazil.core.errors import InvalidInput
from frazil.telemetry.signals import Signal, request_schema

NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "requests_per_second", "bytes_per_second", "connections", "stored_bytes", "datasets", "tables", "retention_age",
        "retention_bytes", "freshness", "target_file_size", "lift",
    )
)  # fmt: skip


class Verbs:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = folder / "data"
        self._config = folder / "frazil.yaml"
        self._config.write_text("security: {enabled: true}\n", encoding="utf-8")
        self._capsys = capsys

    def text(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert main([*words, "--data", str(self.data), "--config", str(self._config)]) == code
        told = self._capsys.readouterr()
        return told.err if code else told.out

    def __call__(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.text(*words, "--json", code=code).strip().splitlines()[-1])


@pytest.fixture
def verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verbs:
    return Verbs(tmp_path, capsys)


def test_the_life_of_a_tenant(verbs: Verbs) -> None:
    assert verbs("tenants", "list") == []
    made = verbs("tenants", "create", "acme", "--bytes-per-second", "1MiB", "--retention-age", "1d")
    assert made["key"]["key"].startswith("frz_")
    assert made["retention"]["age_ms"] == 86_400_000
    assert verbs("bindings", "list")[0] == {
        "principal": made["key"]["principal"],
        "role": "tenant",
        "scope": "/acme.*/*",
    }
    assert verbs("tenants", "create", "acme", code=1)["error"] == "tenant_exists"
    assert verbs("tenants", "limit", "acme", code=2)["error"] == "invalid_input"
    changed = verbs("tenants", "limit", "acme", "--lift", "resource:k8s.pod.name=pod", "--bytes-per-second", "none")
    assert changed["limits"]["bytes_per_second"] is None
    assert changed["lifted"] == [{"source": "resource", "key": "k8s.pod.name", "column": "pod", "type": "string"}]
    rotated = verbs("tenants", "rotate-key", "acme")
    assert rotated["id"] == made["key"]["id"]
    assert rotated["key"] != made["key"]["key"]
    assert verbs("tenants", "rotate-key", "acme", "--key", "a" * 12, code=3)["kind"] == "key"
    with frazil.open(verbs.data) as storage:
        storage.topic("/acme.eu/logs", schema=request_schema(Signal.LOGS))
    report = verbs("tenants", "delete", "acme", "--yes")
    assert report["done"]
    assert [one["topic"] for one in report["topics"]] == ["/acme.eu/logs"]
    assert verbs("tenants", "list") == []
    assert verbs("keys", "list") == []
    assert verbs("tenants", "delete", "acme", "--yes", code=3)["error"] == "tenant_not_found"


def test_what_people_see(verbs: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    key = verbs.text("tenants", "create", "acme", "--datasets", "3").strip()
    assert key.startswith("frz_")
    assert verbs.text("tenants", "create", "bank", "--no-key").strip() == "created tenant bank"
    listed = verbs.text("tenants", "list")
    assert "requests per second" in listed
    assert [line.split()[0] for line in listed.splitlines()[-2:]] == ["acme", "bank"]
    shown = verbs.text("tenants", "show", "acme")
    assert "datasets max:" in shown
    assert key not in shown
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdin", io.StringIO("n\n"))
        assert "not confirmed" in verbs.text("tenants", "delete", "acme", code=1)
    assert verbs.text("tenants", "delete", "acme", "--yes").strip() == (
        "deleted tenant acme: 0 topics, 0 tables with 0 files, 1 key; nothing is left"
    )


def test_options_are_values_of_the_api() -> None:
    given = given_settings(
        **NOTHING
        | {
            "requests_per_second": "7", "stored_bytes": "2KiB", "freshness": "5s", "target_file_size": "none",
            "retention_bytes": "1MiB", "lift": ["item:http.status=status:int64", "scope:a=b=c"],
        }
    )  # fmt: skip
    assert given == {
        "requests_per_second": 7,
        "stored_bytes": 2_048,
        "freshness_ms": 5_000,
        "target_file_bytes": None,
        "retention": {"age_ms": None, "bytes": 1_048_576},
        "lifted": [
            {"source": "item", "key": "http.status", "column": "status", "type": "int64"},
            {"source": "scope", "key": "a=b", "column": "c", "type": "string"},
        ],
    }
    assert given_settings(**NOTHING | {"retention_age": "none", "lift": ["none"]}) == {
        "retention": None,
        "lifted": None,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("datasets", "0"), ("datasets", "-1"), ("tables", "x"), ("lift", ["pod"]), ("lift", ["span:a=b"]),
     ("freshness", "5"), ("stored_bytes", "much")],
)  # fmt: skip
def test_a_wrong_option_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        given_settings(**NOTHING | {name: value})
