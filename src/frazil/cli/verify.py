"""`frazil verify`: proof that every acknowledged message is in exactly one place, or where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli import options, output
from frazil.cli.progress import counter
from frazil.core.errors import CorruptLog, LakeUnavailable, TopicNotFound
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.log.info import LogInfo
    from frazil.topics.logs import LogView
    from frazil.topics.verify import AskLog, Proof


def verify(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="One topic; all of them if none.")] = None,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Read log and table whole, and prove that each acknowledged offset is in one of them, once and unchanged."""
    settings = options.settings_on_disk(data, config)
    try:
        from frazil.lake.history import TableHistories
        from frazil.topics import verify as proving
        from frazil.topics.logs import open_view
    except ModuleNotFoundError as error:
        raise LakeUnavailable("catalog", f"{error.name} is not installed: install frazil[lake]") from None
    histories = TableHistories(settings)
    proofs: list[Proof] = []
    with open_view(settings) as logs:
        wanted = _wanted(logs, topic)
        with counter("verifying", sum(info.durable_end for info in wanted)) as bar:
            for info in wanted:
                history = histories.of(info.topic, info.log_id)
                proofs.append(proving.verify(_asker(logs, info), logs.read, history, bar.advance))
    if as_json:
        output.print_json({"proven": all(proof.proven for proof in proofs), "topics": [p.as_dict() for p in proofs]})
    else:
        _print(proofs)
    if not all(proof.proven for proof in proofs):
        raise typer.Exit(1)


def _wanted(logs: LogView, topic: str | None) -> list[LogInfo]:
    infos = logs.logs()
    problems = getattr(logs, "problems", {})
    if topic is None:
        if problems:
            name, why = next(iter(problems.items()))
            raise CorruptLog(name, 0, why)
        return infos
    name = TopicName.parse(topic)
    if str(name) in problems:
        raise CorruptLog(str(name), 0, problems[str(name)])
    found = [info for info in infos if info.topic == name]
    if not found:
        raise TopicNotFound(topic)
    return found


def _asker(logs: LogView, info: LogInfo) -> AskLog:
    def ask() -> LogInfo:
        found = next((each for each in logs.logs() if each.log_id == info.log_id), None)
        if found is None:
            raise TopicNotFound(str(info.topic))
        return found

    return ask


def _print(proofs: list[Proof]) -> None:
    rows = [
        (
            proof.topic,
            proof.end,
            proof.in_table,
            proof.in_log,
            proof.checksums,
            "proven" if proof.proven else output.plural(len(proof.problems), "problem"),
        )
        for proof in proofs
    ]
    headings = ("topic", "end", "in table", "only in log", "checksums", "result")
    output.print_table(headings, rows, right=headings[1:5])
    for proof in proofs:
        if proof.removed:
            output.say(f"{proof.topic}: the first {proof.removed} rows were removed by retention, in no table")
        for gap in proof.gaps:
            output.say(f"{proof.topic}: offsets {gap.start} up to {gap.end} are missing, and were accepted as such")
        for problem in proof.problems:
            where = f"offsets {problem.range.start} up to {problem.range.end}"
            output.say(f"{proof.topic}: {problem.kind}: {where}: {problem.detail}")
