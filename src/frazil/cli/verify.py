"""`frazil verify`: proof that every acknowledged message is in exactly one place, or where it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli import options, output
from frazil.cli.progress import Told, counter
from frazil.cli.with_parent import end_with_stdin
from frazil.core.errors import LakeUnavailable

if TYPE_CHECKING:
    from frazil.topics.verify import Proof


def verify(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="One topic; all of them if none.")] = None,
    progress_json: Annotated[
        bool, typer.Option("--progress-json", help="With --json: before the answer, how far it is, twice a second.")
    ] = False,
    while_stdin: options.WhileStdin = False,
    data: options.Data = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Read log and table whole, and prove that each acknowledged offset is in one of them, once and unchanged."""
    settings = options.settings_on_disk(data, config)
    if while_stdin:
        end_with_stdin()
    try:
        from frazil.topics.proofs import prove
    except ModuleNotFoundError as error:
        raise LakeUnavailable("catalog", f"{error.name} is not installed: install frazil[lake]") from None
    with contextlib.ExitStack() as stack:

        def begin(total: int) -> Callable[[int], None]:
            return Told(total).advance if progress_json else stack.enter_context(counter("verifying", total)).advance

        proofs = prove(settings, topic, begin)
    if as_json:
        output.print_json({"proven": all(proof.proven for proof in proofs), "topics": [p.as_dict() for p in proofs]})
    else:
        _print(proofs)
    if not all(proof.proven for proof in proofs):
        raise typer.Exit(1)


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
