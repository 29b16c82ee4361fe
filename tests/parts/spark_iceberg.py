"""Spark with Iceberg's own runtime: a Spark Connect server, so that the tests' own process has no JVM in it.

It is the other engine of the tests, and it can run the mover's jobs as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark

from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType
from parts.postgres import PASSWORD, USER
from parts.processes import accepts, free_port, part, running
from parts.s3 import ACCESS_KEY, REGION, SECRET_KEY

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextlib.contextmanager
def spark_server(folder: Path) -> Iterator[str]:
    """Its address, `sc://…`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    jars = ":".join(str(jar) for jar in sorted(part("iceberg").glob("*.jar")))
    options = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Daws.region={REGION} -Dderby.system.home={folder}",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    home = Path(pyspark.__file__).parent
    words = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    command = [home / "bin" / "spark-submit", *words, "--class", _SERVER, "spark-internal"]
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_DIST_CLASSPATH": jars,  # behind Spark's own jars, where the archive of their classes stays valid
    }
    with running(command, environment, folder / "spark.log", lambda: accepts(port)):
        yield f"sc://127.0.0.1:{port}"


def iceberg_options(settings: Settings) -> dict[str, str]:
    """What Spark must be told to open the same catalog that the settings name, by the same name."""
    name, uri = settings.catalog.name, settings.catalog.uri
    options = {"": "org.apache.iceberg.spark.SparkCatalog", "cache-enabled": "false"}
    if settings.catalog.type is CatalogType.REST:
        assert uri is not None
        options |= {
            "type": "rest",
            "uri": uri.get_secret_value(),
            "warehouse": settings.object_store.bucket or "",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": settings.object_store.endpoint or "",
            "s3.path-style-access": "true",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
        }
    else:
        assert settings.catalog.type is CatalogType.SQL
        options |= {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": f"file://{settings.data}/warehouse"}
        if uri is None:
            options["uri"] = f"jdbc:sqlite:{settings.data}/catalog.db"
        else:
            place = uri.get_secret_value().partition("@")[2]
            options |= {"uri": f"jdbc:postgresql://{place}", "jdbc.user": USER, "jdbc.password": PASSWORD}
    return {f"spark.sql.catalog.{name}{'.' if key else ''}{key}": value for key, value in options.items()}
