"""What each broker of a cluster says of it to Prometheus and to `frazil top`."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from frazil.cli.main import main
from frazil.cli.terminal.top_figures import parse
from frazil.core.names import TopicName
from parts.cluster import Brokers, FakeOwnership, brokers


def values(two: Brokers, broker: str, name: str) -> dict[tuple[str, ...], float]:
    found = parse(httpx.get(f"{two[broker].http}/metrics").text, 0.0).values[name]
    return {tuple(value for _, value in labels): number for labels, number in found.items()}


def test_brokers_topics_load_and_leader_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with brokers(tmp_path / "data", "abc") as three:
        for number in range(6):
            three.cluster.give(f"/default/t{number}", "aaaabc"[number])
        assert values(three, "b", "frazil_cluster_topics") == {("a",): 4.0, ("b",): 1.0, ("c",): 1.0}
        assert values(three, "b", "frazil_cluster_load") == {("a",): 4.0, ("b",): 1.0, ("c",): 1.0}
        assert values(three, "b", "frazil_cluster_load_variation")[()] == pytest.approx(0.7071, abs=0.001)
        assert [values(three, name, "frazil_cluster_leads")[()] for name in "abc"] == [1.0, 0.0, 0.0]
        assert values(three, "c", "frazil_cluster_has_leader") == {(): 1.0}
        three.run(FakeOwnership(three.cluster, "b").move(TopicName.parse("/default/t0"), "c"))
        assert values(three, "a", "frazil_cluster_topics_given_total") == {(): 1.0}
        assert values(three, "c", "frazil_cluster_topics_taken_total") == {(): 1.0}
        assert values(three, "c", "frazil_cluster_moves_failed_total") == {(): 0.0}
        three.kill("c")
        three.cluster.unavailable[TopicName.parse("/default/t5")] = "its broker is gone"
        states = {("active",): 2.0, ("draining",): 0.0, ("gone",): 1.0}
        assert values(three, "a", "frazil_cluster_brokers") == states
        assert values(three, "a", "frazil_cluster_topics_unserved") == {(): 1.0}
        assert main(["top", "--once", "--json", "--interval", "100ms", "--server", three["a"].http]) == 0
        server = json.loads(capsys.readouterr().out)["server"]
        assert (server["brokers_active"], server["brokers_gone"], server["leads"]) == (2, 1, True)
        assert server["topics_unserved"] == 1
        assert main(["top", "--once", "--interval", "100ms", "--server", three["a"].http]) == 0
        assert "cluster 2 brokers, 1 gone  leads" in capsys.readouterr().out
