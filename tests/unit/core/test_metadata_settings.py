"""The settings of the store of metadata: checked when made, each problem told by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.meta.opening import META_FILE, open_meta

ETCD = {"type": "etcd", "endpoints": ["https://etcd-1.example:2379", "https://[2001:db8::7]:2379"]}
SECRET = "s3cret-of-a-test"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"type": "etcd"}, "metadata: endpoints are needed for metadata of type etcd"),
        ({"type": "consul"}, "metadata.type: Input should be 'sqlite' or 'etcd'"),
        ({**ETCD, "endpoints": ["etcd-1:2379"]}, "metadata.endpoints: must be addresses like http://127.0.0.1:2379"),
        ({**ETCD, "endpoints": ["https://etcd-1"]}, "metadata.endpoints: must be addresses"),
        ({**ETCD, "endpoints": ["https://a:1", "http://b:1"]}, "metadata.endpoints: must be all http or all https"),
        ({**ETCD, "prefix": "/frazil/"}, "metadata.prefix: must be like /frazil"),
        ({**ETCD, "prefix": "//"}, "metadata.prefix: must be like /frazil"),
        ({**ETCD, "prefix": ""}, "metadata.prefix: must be like /frazil"),
        ({**ETCD, "username": "me"}, "metadata: username and password are given both or not at all"),
        ({**ETCD, "key_path": "key.pem"}, "metadata: cert_path and key_path are given both or not at all"),
        ({**ETCD, "endpoints": ["http://a:1"], "ca_path": "ca"}, "metadata: certificates are for endpoints that begin"),
        ({**ETCD, "timeout_ms": 10}, "metadata.timeout_ms: Input should be greater than or equal to 500"),
        ({**ETCD, "endpoint": "https://a:1"}, "metadata.endpoint: no such setting; did you mean endpoints?"),
    ],
)
def test_what_does_not_fit_is_told_by_its_key(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(frazil.InvalidSettings) as error:
        make_settings({"metadata": values})
    assert problem in error.value.message


def test_the_environment_gives_several_endpoints_with_commas() -> None:
    environment = {"FRAZIL_METADATA__TYPE": "etcd", "FRAZIL_METADATA__ENDPOINTS": "http://a:1, http://b:2"}
    settings = make_settings({}, environment=environment)
    assert settings.metadata.endpoints == ("http://a:1", "http://b:2")


def test_the_password_is_not_shown() -> None:
    values = {"metadata": {**ETCD, "username": "me", "password": SECRET}}
    settings = make_settings(values)
    for shown in (repr(settings), settings.model_dump_json(), repr(settings.model_dump())):
        assert SECRET not in shown
    with pytest.raises(frazil.InvalidSettings) as error:
        make_settings({"metadata": {**ETCD, "password": SECRET}})
    assert SECRET not in error.value.message


def test_unset_it_is_a_file_in_the_data_folder(tmp_path: Path) -> None:
    open_meta(Settings(data=tmp_path)).close()
    assert (tmp_path / META_FILE).exists()


def test_without_a_folder_there_is_no_file() -> None:
    with pytest.raises(frazil.InvalidSettings, match=r"metadata\.type: sqlite needs a data folder"):
        open_meta(Settings(data=None))


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    settings = make_settings({"metadata": {**ETCD, "ca_path": str(tmp_path / "ca.pem")}})
    with pytest.raises(frazil.InvalidSettings, match=r"metadata\.ca_path: cannot read .*ca\.pem: No such file"):
        open_meta(settings)
