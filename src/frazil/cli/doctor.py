"""`frazil doctor`: check the machine, the data folder and the server, and say what to do."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from frazil.cli.target.server import Server, find_server
from frazil.cli.terminal import options, output
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.disk.json_file import read_json
from frazil.core.errors import FrazilError, InvalidSettings, LakeUnavailable, NewerFormat
from frazil.core.extras import install_hint
from frazil.log.folder.layout import walk_topics
from frazil.pipeline.spark.requirements import JAVA_VERSIONS, find_java, package_version

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.log.info import LogInfo

FREE_BYTES_LOW = 1024**3
FREE_BYTES_FAIL = 64 * 1024**2
SYNC_SLOW_MS = 10.0
_SYNC_ROUNDS = 32
_SPARE_FILES = 256


class Finding(NamedTuple):
    name: str
    state: str
    text: str
    advice: str = ""


def doctor(
    server: options.Server = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Check the machine, the data folder and the server: ok, warn or fail, with what to do. Changes nothing."""
    settings = options.settings_on_disk(data, config)
    findings = [*(look(settings) for look in LOOKS), _server(find_server(server, data, config))]
    if as_json:
        output.print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            advice = f"; {finding.advice}" if finding.advice else ""
            print(f"{finding.state:<5}{finding.name:<14}{finding.text}{advice}")
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


def _python(_: Settings) -> Finding:
    return Finding("python", "ok", platform.python_version())  # an older Python cannot even parse this file


def _pyarrow(_: Settings) -> Finding:
    import pyarrow as pa

    if int(pa.__version__.split(".")[0]) < 21:
        return Finding("pyarrow", "fail", pa.__version__, "install pyarrow 21 or newer")
    return Finding("pyarrow", "ok", pa.__version__)


def _platform(_: Settings) -> Finding:
    text = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
    if platform.system() != "Linux" or sys.byteorder != "little":
        return Finding("platform", "warn", text, "Frazil is made for and tested on Linux")
    return Finding("platform", "ok", text)


def _java(_: Settings) -> Finding:
    """Only a warning: without Spark all rows stay in the log."""
    java, wanted = find_java(), " or ".join(map(str, JAVA_VERSIONS))
    if java is None:
        return Finding("java", "warn", "none found", f"rows reach no table: install Java {wanted}, or set JAVA_HOME")
    if not java.fits:
        return Finding("java", "warn", f"{java.version} ({java.path})", f"Spark needs Java {wanted}: set JAVA_HOME")
    return Finding("java", "ok", f"{java.version} ({java.path})")


def _pyspark(_: Settings) -> Finding:
    return _package("pyspark", "4.1.")


def _pyiceberg(_: Settings) -> Finding:
    return _package("pyiceberg", "0.12.")


def _package(name: str, wanted: str) -> Finding:
    version = package_version(name)
    if version is None:
        return Finding(name, "warn", "not installed", f"rows reach no table: {install_hint(name)}")
    if not version.startswith(wanted):
        return Finding(name, "warn", version, f"Frazil is made for {name} {wanted}x")
    return Finding(name, "ok", version)


def _mover(settings: Settings) -> Finding:
    from frazil.node.movers.status_file import read_status

    try:
        report = read_status(settings, SystemClock())
    except NewerFormat as error:
        return Finding("mover", "warn", error.message, "a mover of this version writes it anew")
    if report is None:
        return Finding("mover", "ok", "has never run on this folder")
    failing = [name for name, topic in report.get("topics", {}).items() if topic.get("error")]
    text, advice = str(report.get("state")), "see: frazil pipeline status"
    if report.get("error"):
        return Finding("mover", "warn", f"{text}: {report['error']}", advice)
    if failing:
        return Finding("mover", "warn", f"{text}; {output.plural(len(failing), 'topic')} can't be moved", advice)
    kept = report.get("maintenance") or {}
    if kept.get("state") == "failed":
        return Finding("mover", "warn", f"{text}; its maintenance of the tables failed: {kept.get('error')}", advice)
    if text == "gone":
        return Finding("mover", "warn", "it ended without a report", "restart it: frazil serve")
    return Finding("mover", "ok", text)


def _lake(settings: Settings) -> Finding:
    """Query the catalog and its store for a few seconds at most, without writing."""
    if package_version("pyiceberg") is None:
        return Finding("lake", "ok", "not asked: pyiceberg is not installed")
    from frazil.lake.catalogs.check import probe_lake

    try:
        where = probe_lake(settings)
    except LakeUnavailable as error:
        return Finding("lake", "fail", error.message, "rows wait in the log until it answers")
    return Finding("lake", "ok", where)


def _tables(settings: Settings) -> Finding:
    """Report logs that end before their table: after a repair, or after a folder was restored from an older copy."""
    from frazil.log.folder.ownership import owner_of
    from frazil.node.movers.table_ahead import tables_ahead
    from frazil.node.movers.table_progress import status_path

    report = read_json(status_path(settings))
    if not (report or {}).get("topics"):
        return Finding("tables", "ok", "none is known to be moved to")
    logs = _logs(settings)
    known = {} if owner_of(settings) is not None else {info.log_id: info.durable_end for info in logs}
    ahead = tables_ahead(report, known, {one.log_id for info in logs for one in info.former})
    if ahead:
        text = f"{output.plural(len(ahead), 'topic')} with a table ahead of the log: {next(iter(ahead.values()))}"
        return Finding("tables", "fail", text, "frazil log renumber: see Operate, The log is behind its table")
    return Finding("tables", "ok", "no log is behind its table")


def _logs(settings: Settings) -> list[LogInfo]:
    from frazil.log.info import logs_from_files

    return logs_from_files(LocalDisk(), settings.log_folder)[0]


def _retention(settings: Settings) -> Finding:
    """Report what keeps rows in the log past their retention, as far as the settings show it."""
    from frazil.node.retention.moved import MovedFolder, catalog_name
    from frazil.node.retention.table import kept_in_memory

    setting = kept_in_memory(settings)
    if setting is not None:
        text = f"{setting}: memory: tables end with their process, so no moved row is removed"
        return Finding("retention", "warn", text, "set a catalog and a store that stay")
    try:
        known, own = MovedFolder(settings, LocalDisk()).catalog(), catalog_name(settings)
    except FrazilError as error:
        return Finding("retention", "warn", error.message, "nothing is removed until it can be read")
    if known not in (None, own):
        text = f"rows are moved to the catalog `{known}`, and these settings name `{own}`: nothing goes"
        return Finding("retention", "warn", text, "use the settings of the mover")
    return Finding("retention", "ok", "asks " + ("the catalog" if known else "no catalog yet") + " before rows go")


def _metadata(settings: Settings) -> Finding:
    from frazil.core.settings.metadata import MetadataType
    from frazil.meta.opening import probe_members

    if settings.metadata.type is MetadataType.SQLITE:
        return Finding("metadata", "ok", "SQLite, in the data folder")
    try:
        members = probe_members(settings)
    except InvalidSettings as error:
        return Finding("metadata", "fail", error.message, "fix the setting")
    bad = [f"{endpoint} ({reason})" for endpoint, reason in members.items() if reason is not None]
    if not bad:
        return Finding("metadata", "ok", f"etcd: {output.plural(len(members), 'member')} of {len(members)} answered")
    text, advice = f"etcd: cannot use {', '.join(bad)}", "start etcd there, or fix the settings under `metadata`"
    return Finding("metadata", "warn" if len(bad) < len(members) else "fail", text, advice)


def _folder(settings: Settings) -> Finding:
    folder = _nearest(settings)
    new = "" if folder == settings.data else f" (not there yet; it would be made in {folder})"
    if not folder.is_dir():
        return Finding("data folder", "fail", f"{folder} is no folder", "give another one with --data")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("data folder", "fail", f"{folder} is not writable", f"give user {os.getuid()} the right to")
    return Finding("data folder", "ok", f"{settings.data}{new}")


def _owner(settings: Settings) -> Finding:
    from frazil.log.folder.ownership import owner_of

    pid = owner_of(settings)
    return Finding("owner", "ok", "no process owns it" if pid is None else f"process {pid} owns it")


def _server(server: Server | None) -> Finding:
    """Report the server's own health status."""
    if server is None:
        return Finding("server", "ok", "none runs on this folder")
    try:
        health = server.ready()
    except FrazilError as error:
        return Finding("server", "fail", error.message)
    text = f"{server.address} is {health.get('status')}, {health.get('opened')} of {health.get('topics')} topics opened"
    if health.get("status") == "ready":
        warnings = [str(one.get("message")) for one in health.get("warnings") or []]
        return Finding("server", "warn", f"{text}: {warnings[0]}") if warnings else Finding("server", "ok", text)
    reasons = health.get("reasons") or []
    first = f": {reasons[0].get('message')}" if reasons else ""
    return Finding("server", "warn", text + first, "see its log" if reasons else "wait until all topics are open")


def _space(settings: Settings) -> Finding:
    free = shutil.disk_usage(_nearest(settings)).free
    text = f"{output.bytes_shown(free)} free"
    budget = settings.wal.disk_bytes_max
    if budget is not None:
        left = budget - _used_bytes(settings)
        text += f", {output.bytes_shown(max(0, left))} left of the budget of {output.bytes_shown(budget)}"
        if left > free:
            return Finding("disk space", "warn", text, "the disk is full before the budget is: lower disk_bytes_max")
        if left <= 0:
            return Finding("disk space", "warn", text, "publishing is refused: raise disk_bytes_max or keep less")
    if free < FREE_BYTES_FAIL:
        return Finding("disk space", "fail", text, "make room")
    if free < FREE_BYTES_LOW:
        return Finding("disk space", "warn", text, "free space soon")
    return Finding("disk space", "ok", text)


def _files(settings: Settings) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.wal.open_files_max + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return Finding("open files", "warn", f"at most {soft}", f"raise the limit: ulimit -n {wanted}")
    return Finding("open files", "ok", f"at most {soft}")


def _sync(settings: Settings) -> Finding:
    try:
        times_ms = _sync_times_ms(_nearest(settings))
    except OSError as error:
        return Finding("sync", "fail", f"cannot write and sync a file ({error.strerror})", "check the disk")
    middle = statistics.median(times_ms)
    text = f"write and fdatasync of 4 KiB: p50 {middle:.2f} ms, worst of {len(times_ms)} {max(times_ms):.2f} ms"
    if middle > SYNC_SLOW_MS:
        return Finding("sync", "warn", text, "every message waits for this: use a faster disk, or batch more")
    return Finding("sync", "ok", text)


def _sync_times_ms(folder: Path) -> list[float]:
    """Measure on a separate, preallocated file, as the log writes."""
    disk, path = LocalDisk(), folder / f"~doctor-{os.getpid()}"
    file = disk.open(path, "create")
    try:
        file.allocate(0, 4096 * _SYNC_ROUNDS)
        file.sync()
        times = []
        for turn in range(_SYNC_ROUNDS):
            started = time.perf_counter()
            file.write([b"\1" * 4096], turn * 4096)
            file.sync()
            times.append((time.perf_counter() - started) * 1_000)
        return times
    finally:
        file.close()
        disk.remove(path)


def _records(settings: Settings) -> Finding:
    if not settings.log_folder.is_dir():
        return Finding("records", "ok", "there is no log yet")
    from frazil.log.repair.check import read_ends

    _, flaw = read_ends(LocalDisk(), settings.log_folder)
    if flaw is not None:
        return Finding("records", "fail", f"{flaw.path}: {flaw.reason}", "run: frazil log repair TOPIC")
    return Finding("records", "ok", "readable; `frazil log check` reads the rest")


def _set_aside(settings: Settings) -> Finding:
    kept = list(_kept_files(settings))
    if kept:
        text = f"{output.plural(len(kept), 'file')} cut off by recovery or repair, first {kept[0]}"
        return Finding("set aside", "warn", text, "move them away once you have checked them")
    return Finding("set aside", "ok", "no bytes were cut off")


def _kept_files(settings: Settings) -> Iterator[Path]:
    from frazil.log.repair.check import is_set_aside

    with contextlib.suppress(FileNotFoundError):
        for name, _ in walk_topics(LocalDisk(), settings.log_folder):
            folder = settings.log_folder / name.namespace / name.topic
            yield from (path for path in sorted(folder.iterdir()) if is_set_aside(path.name))


def _used_bytes(settings: Settings) -> int:
    try:
        return sum(size for _, size in walk_topics(LocalDisk(), settings.log_folder))
    except FileNotFoundError:
        return 0


def _nearest(settings: Settings) -> Path:
    """Return the data folder, or its nearest existing parent."""
    assert settings.data is not None
    folder = settings.data.absolute()
    if settings.data.exists():
        return settings.data
    while not folder.exists():
        folder = folder.parent
    return folder


LOOKS: tuple[Callable[[Settings], Finding], ...] = (
    _python, _pyarrow, _platform, _java, _pyspark, _pyiceberg, _folder, _owner, _space, _files, _sync, _records,
    _set_aside, _mover, _lake, _tables, _retention, _metadata,
)  # fmt: skip
