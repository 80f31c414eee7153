#!/usr/bin/env python3
"""torch.softmax and a compiled softmax on a CUDA device, verified, then timed, beside a record of `upsweep bench softmax`.

    python3 peers/torch_softmax.py RECORD.json [--repeats 30]

For each softmax and log_softmax row of f32 along the last axis in the record, which was measured on this device a moment
ago, torch's rows are added to the file: each verified against float64, timed by device events into memory that it was
given, on inputs rotated through more than four times the second-level cache.
"""

import argparse
import json
import os
import sys

import torch

UNIT_ROUNDOFF = 2.0**-24


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    with open(options.record, encoding="utf-8") as file:
        record = json.load(file)
    added = []
    for ours in record["rows"]:
        shape, _, axis = ours["shape"].partition(",")
        if ours["operator"] not in ("softmax", "log_softmax") or axis.strip() != "last axis" or ours["dtype"] != "f32":
            continue
        rows, columns = (int(part) for part in shape.split(" x "))
        added += measure(ours, rows, columns, options.repeats)
    record["rows"] += added
    record["kind"] = "peers"
    partial = options.record + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1) + "\n")
    os.replace(partial, options.record)
    return 0 if all(row["verified"] for row in added) else 1


def measure(ours, rows, columns, repeats):
    name = ours["operator"]
    plain = torch.softmax if name == "softmax" else torch.log_softmax
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: plain(x, -1))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    slots = max(1, min(64, 4 * cache // (rows * columns * 4) + 1))
    inputs = [torch.rand(rows, columns, device="cuda") for _ in range(slots)]
    out = torch.empty(rows, columns, device="cuda")
    calls = {
        f"torch {torch.__version__}": lambda x: plain(x, -1, out=out),
        f"torch.compile {torch.__version__}": compiled,
    }
    for rung, call in calls.items():
        row = {key: ours[key] for key in ("op", "device", "operator", "dtype", "n", "shape", "bytes")}
        row.update(rung=rung, traffic="copy", verified=False)
        error, bound = check(name, inputs[0], call(inputs[0]))
        row.update(error=error, bound=bound, verified=bool(error <= bound))
        if row["verified"]:
            seconds = sorted(times(call, inputs, repeats))
            row.update(
                seconds=seconds[len(seconds) // 2],
                seconds_min=seconds[0],
                seconds_p10=seconds[len(seconds) // 10],
                seconds_p90=seconds[-1 - len(seconds) // 10],
                repeats=repeats,
                bytes_per_second=row["bytes"] / seconds[len(seconds) // 2],
            )
        else:
            print(f"{rung} {name} {ours['shape']}: the error is {error}, allowed is {bound}", file=sys.stderr)
        yield row


def check(name, x, got):
    """The largest error as a part of its bound, as (error, bound) there; over at most 2^24 elements, whole rows."""
    some = max(1, min(x.shape[0], (1 << 24) // x.shape[1]))
    wide = x[:some].double()
    logs = torch.log_softmax(wide, -1)
    relative = (64 + (wide - wide.max(-1, keepdim=True).values).abs()) * UNIT_ROUNDOFF
    answer = logs.exp() if name == "softmax" else logs
    bound = relative * answer.abs()
    error = (got[:some].double() - answer).abs()
    ratio = torch.where(error.isnan(), torch.inf, error / bound.clamp_min(1e-300))
    place = int(ratio.argmax())
    return float(error.flatten()[place]), float(bound.flatten()[place])


def times(call, inputs, repeats):
    # Long enough that the clocks and the caches have settled.
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
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in pairs:
        start.record()
        call(inputs[position % len(inputs)])
        position += 1
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


if __name__ == "__main__":
    sys.exit(main())
