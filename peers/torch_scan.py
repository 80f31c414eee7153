#!/usr/bin/env python3
"""torch.cumsum and a compiled cumsum on a CUDA device, verified, then timed, at the points of `upsweep bench scan --shapes`.

    python3 peers/torch_scan.py RECORD.json [--repeats 30] [--seconds 500]

For each point of f32 sums in the record, which was measured on this device a moment ago, torch's rows are added to the file:
same shape, axis and places in memory, verified against float64, on inputs rotated through more than four times the second-level
cache. As upsweep's own rows, those of fewer than 2^22 elements are timed as calls of a replayed graph, the others by events.
A compiled cumsum is compiled anew for each shape, and writes into memory of its own choice.

Compiling takes seconds a shape: with --seconds no point is begun after so long, and another call goes on where this one ended.
`upsweep review RECORD.json` then names the points at which a peer is as fast.

Exit codes: 0 all verified, 1 a peer was wrong, 3 there are points left.
"""

import argparse
import json
import math
import os
import sys
import time

import torch

UNIT_ROUNDOFF = 2.0**-24
GRAPH_BELOW = 1 << 22
GRAPH_CALLS = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no point after so long")
    options = parser.parse_args()
    start = time.monotonic()
    with open(options.record, encoding="utf-8") as file:
        record = json.load(file)
    rungs = [f"torch {torch.__version__}", f"torch.compile {torch.__version__}"]
    done = {row["shape"] for row in record["rows"] if row["rung"] in rungs}
    ours = [row for row in record["rows"] if row.get("point") and (row["operator"], row["dtype"]) == ("sum", "f32")]
    added, left = [], 0
    for row in ours:
        if row["shape"] in done:
            continue
        if time.monotonic() - start > options.seconds:
            left += 1
            continue
        added += measure(row, rungs, options.repeats)
    record["rows"] += added
    partial = options.record + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    os.replace(partial, options.record)
    print(f"{len(added)} rows added, {left} points left")
    return 1 if not all(row["verified"] for row in added) else 3 if left else 0


def measure(ours, rungs, repeats):
    point = ours["point"]
    rows, columns = point["rows"], point["columns"]
    axis = 0 if point["along"] == "first" else 1
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    slots = max(1, min(GRAPH_CALLS, 4 * cache // (rows * columns * 4) + 1))

    def place(off, make):
        """Memory that begins `off` elements behind an aligned address."""
        return make(off + rows * columns, device="cuda")[off:].view(rows, columns)

    placement = point.get("placement", {"input": 0, "output": 0})
    inputs = [place(placement["input"], torch.rand) for _ in range(slots)]
    out = place(placement["output"], torch.empty)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.cumsum(x, axis), dynamic=False)
    calls = dict(zip(rungs, [lambda x: torch.cumsum(x, axis, out=out), compiled]))
    for rung, call in calls.items():
        row = {key: ours[key] for key in ("op", "device", "operator", "dtype", "n", "shape", "bytes", "traffic")}
        row.update(rung=rung, verified=False)
        error, bound = check(axis, inputs[0], call(inputs[0]))
        row.update(error=error, bound=bound, verified=bool(error <= bound))
        if row["verified"]:
            seconds = sorted((replays if ours["n"] < GRAPH_BELOW else times)(call, inputs, repeats))
            row.update(
                seconds=seconds[len(seconds) // 2],
                seconds_min=seconds[0],
                seconds_p10=seconds[len(seconds) // 10],
                seconds_p90=seconds[-1 - len(seconds) // 10],
                repeats=repeats,
                bytes_per_second=row["bytes"] / seconds[len(seconds) // 2],
            )
        else:
            row.update(failure=f"the error is {error}, allowed is {bound}")
            print(f"{rung} {ours['shape']}: the error is {error}, allowed is {bound}", file=sys.stderr)
        yield row


def check(axis, x, got):
    """The largest error as a part of its bound, as (error, bound) there."""
    answer = torch.cumsum(x.double(), axis)
    length = x.shape[axis]
    # Down columns a thread may add one element after the other; along rows a carry goes from tile to tile, some thousand
    # elements each, and a tree is inside. The elements are positive.
    chain = length if axis == 0 else 64 + 4 * math.log2(length + 1) + length / 1024
    bound = (chain * UNIT_ROUNDOFF) * answer
    error = (got.double() - answer).abs_()
    ratio = torch.where(error.isnan(), torch.inf, error / bound.clamp_min(1e-300))
    place = int(ratio.argmax())
    return float(error.flatten()[place]), float(bound.flatten()[place])


def settle(call, inputs):
    """Long enough that the clocks and the caches have settled."""
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    spent, position = 0.0, 0
    while spent < 80:
        start.record()
        for _ in range(4):
            call(inputs[position % len(inputs)])
            position += 1
        end.record()
        torch.cuda.synchronize()
        spent += start.elapsed_time(end)


def times(call, inputs, repeats):
    """Seconds of each call, by events."""
    settle(call, inputs)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for position, (start, end) in enumerate(pairs):
        start.record()
        call(inputs[position % len(inputs)])
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


def replays(call, inputs, repeats):
    """Seconds a call of replays of a graph of calls."""
    settle(call, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for position in range(GRAPH_CALLS):
            call(inputs[position % len(inputs)])
    return [seconds / GRAPH_CALLS for seconds in times(lambda _: graph.replay(), inputs, repeats)]


if __name__ == "__main__":
    sys.exit(main())
