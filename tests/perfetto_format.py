"""What a Chrome trace must hold to open in ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import itertools
import json
from typing import Any

LONGEST_NAME = 200


def check_trace(text: str) -> list[dict[str, Any]]:
    """The events of the trace: each complete, slices of a track not crossing, flows with both ends, tracks named."""
    trace = json.loads(text)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    events: list[dict[str, Any]] = trace["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    flows: dict[str, list[int]] = {"s": [], "f": []}
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert 0 < len(event["name"]) <= LONGEST_NAME
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert (event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert event["dur"] > 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            flows[event["ph"]].append(event["id"])
    assert sorted(flows["s"]) == sorted(flows["f"])
    assert len(set(flows["s"])) == len(flows["s"])
    for spans in tracks.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-3
    return events
