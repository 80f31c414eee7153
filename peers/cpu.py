#!/usr/bin/env python3
"""NumPy and torch on the CPU, on n f32 elements, verified, then timed:

    reduce     sum, max, argmax, logsumexp
    scan       cumulative sum and maximum
    softmax    softmax and log_softmax of rows of 4096

    python3 peers/cpu.py OP [--n 67108864] [--threads 2] [--repeats 15] [--seed 1] [--upsweep BINARY] [--out FILE]

With --upsweep the planner's kernels run in the same minutes, in turn with the peers: three rounds of `BINARY bench OP
--device cpu`, each verified by its own gate; a row has the median of its rounds' medians. The result is then a record of
upsweep's form with the peers' rows beside ours. Where results are arrays, the peers write into memory that they were given,
as ours do.

Every row is checked against a reference in float64 before it is timed; a wrong result is a row without a time and
exit code 1. A peer that is not installed is named in "missing" and has no rows. All peers read one buffer, and the
repeats go round all of them, so that a disturbance of the machine meets each alike. NumPy has no logsumexp of its
own: its row is the usual two lines (maximum, then the log of the sum of shifted exponentials).

Exit codes: 0 all verified, 1 a peer was wrong, 2 usage.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

UNIT_ROUNDOFF = 2.0**-24


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("op", choices=["reduce", "scan", "softmax"])
    parser.add_argument("--n", type=size, default=1 << 26, help="elements, also as 2^26 (default 2^26)")
    parser.add_argument("--threads", type=positive, default=2, help="threads of torch (default 2; NumPy uses one)")
    parser.add_argument("--repeats", type=positive, default=15, help="timed calls of each row (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data (default 1)")
    parser.add_argument("--upsweep", metavar="BINARY", help="also run this upsweep binary, in turn with the peers")
    parser.add_argument("--out", help="write the JSON to this file instead of standard output")
    return parser.parse_args()


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def size(text):
    base, power, exponent = text.partition("^")
    return positive(str(int(base) ** int(exponent))) if power else positive(text)


def reductions(np, x, torch):
    """(rung, operator, call, answer of a call, largest error allowed) for each peer that is installed."""
    wide = x.astype(np.float64)
    total = math.fsum(np.add.reduceat(wide, np.arange(0, x.size, 1 << 16)))
    magnitude = float(np.abs(wide).sum())
    steps = math.log2(max(x.size, 2))
    top = float(wide.max())
    log_sum = top + math.log(float(np.exp(wide - top).sum()))
    # The accumulators of both peers take some hundred elements each before a tree begins.
    chain = 128 + steps
    expected = {
        "sum": (total, chain * UNIT_ROUNDOFF * magnitude),
        "max": (top, 0.0),
        "argmax": (int(np.flatnonzero(wide == top)[0]), 0),
        "logsumexp": (log_sum, chain * UNIT_ROUNDOFF + 4 * UNIT_ROUNDOFF * abs(log_sum)),
    }

    def numpy_logsumexp():
        top = x.max()
        return top + np.log(np.exp(x - top).sum())

    calls = [
        ("numpy", "sum", x.sum),
        ("numpy", "max", x.max),
        ("numpy", "argmax", x.argmax),
        ("numpy", "logsumexp", numpy_logsumexp),
    ]
    if torch:
        t = torch.from_numpy(x)
        calls += [
            ("torch", "sum", lambda: t.sum().item()),
            ("torch", "max", lambda: t.max().item()),
            ("torch", "argmax", lambda: t.argmax().item()),
            ("torch", "logsumexp", lambda: torch.logsumexp(t, 0).item()),
        ]
    for rung, operator, call in calls:
        answer, bound = expected[operator]
        # A plain number: an f32 scalar would round the difference to f32.
        got = int(call()) if operator == "argmax" else float(call())
        yield rung, operator, call, abs(got - answer), bound, 8 if operator == "argmax" else 4


def worst(np, got, answer, bound):
    """The error and the bound where their ratio is largest; NaN anywhere is an error of NaN."""
    error = np.abs(got.astype(np.float64) - answer)
    place = int(np.argmax(np.where(np.isnan(error), np.inf, error / np.maximum(bound, 1e-300))))
    return float(error.flat[place]), float(bound.flat[place])


def scans(np, x, torch):
    """As reductions."""
    wide = x.astype(np.float64)
    # A peer may add one element after the other.
    answers = {
        "sum": (np.cumsum(wide), np.arange(1, x.size + 1) * UNIT_ROUNDOFF * np.cumsum(np.abs(wide))),
        "max": (np.maximum.accumulate(wide), np.zeros(x.size)),
    }
    out = np.empty_like(x)
    calls = [
        ("numpy", "sum", lambda: np.cumsum(x, out=out)),
        ("numpy", "max", lambda: np.maximum.accumulate(x, out=out)),
    ]
    if torch:
        t, o = torch.from_numpy(x), torch.from_numpy(out)
        indices = torch.empty(x.size, dtype=torch.int64)
        calls += [
            ("torch", "sum", lambda: torch.cumsum(t, 0, out=o)),
            ("torch", "max", lambda: torch.cummax(t, 0, out=(o, indices))),
        ]
    for rung, operator, call in calls:
        out.fill(np.nan)
        call()
        yield rung, operator, call, *worst(np, out, *answers[operator]), 4 * x.size


COLUMNS = 4096


def softmaxes(np, x, torch):
    """As reductions."""
    rows = x.reshape(-1, COLUMNS)
    shifted = rows.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    logs = shifted - log_sum
    relative = (64 + np.abs(shifted)) * UNIT_ROUNDOFF
    answers = {"softmax": (np.exp(logs), relative * np.exp(logs)), "log_softmax": (logs, relative * np.abs(logs))}
    out, scratch = np.empty_like(rows), np.empty_like(rows)

    def numpy_softmax():
        np.subtract(rows, rows.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(axis=1, keepdims=True), out=out)

    def numpy_log_softmax():
        np.subtract(rows, rows.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=scratch)
        np.subtract(out, np.log(scratch.sum(axis=1, keepdims=True)), out=out)

    calls = [("numpy", "softmax", numpy_softmax), ("numpy", "log_softmax", numpy_log_softmax)]
    if torch:
        t, o = torch.from_numpy(rows), torch.from_numpy(out)
        calls += [
            ("torch", "softmax", lambda: torch.softmax(t, 1, out=o)),
            ("torch", "log_softmax", lambda: torch.log_softmax(t, 1, out=o)),
        ]
    for rung, operator, call in calls:
        out.fill(np.nan)
        call()
        yield rung, operator, call, *worst(np, out, *answers[operator]), 4 * x.size


OPS = {"reduce": reductions, "scan": scans, "softmax": softmaxes}


ROUNDS = 3


def bench(options):
    """One round of upsweep's own bench: its record."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record.json")
        command = [options.upsweep, "bench", options.op, "--device", "cpu", "--n", str(options.n), "--seed", str(options.seed)]
        command += ["--repeats", str(options.repeats), "--format", "json", "--out", path]
        subprocess.run(command, check=True, env={**os.environ, "RAYON_NUM_THREADS": str(options.threads)}, stderr=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def beside(records, rows, versions):
    """The record of one of our rounds, each row with the median of its rounds, and the peers' rows beside it."""
    record = records[0]
    for position, row in enumerate(record["rows"]):
        medians = sorted(other["rows"][position]["seconds"] for other in records)
        row["seconds"] = medians[len(medians) // 2]
        row["seconds_min"] = min(other["rows"][position]["seconds_min"] for other in records)
        row["bytes_per_second"] = row["bytes"] / row["seconds"]
    # The best ceiling of any round.
    record["ceilings"] = [max((c for other in records for c in other["ceilings"]), key=lambda c: c["bytes_per_second"])]
    for row in record["rows"]:
        row["percent_of_ceiling"] = 100 * row["bytes_per_second"] / record["ceilings"][0]["bytes_per_second"]
    shape = record["rows"][0]["shape"]
    for row in rows:
        row.update(rung=f"{row['rung']} {versions[row['rung']]}", shape=shape)
    record["kind"] = "peers"
    record["command"] = f"peers/cpu.py {record['op']} --upsweep upsweep"
    record["rows"] += rows
    return record


def quantile(ordered, fraction):
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def main():
    options = parse()
    try:
        import numpy as np
    except ImportError as error:
        sys.exit(f"numpy is needed: {error}. Next step: python3 -m pip install numpy torch")
    versions, missing = {"numpy": np.__version__}, []
    try:
        import torch
    except ImportError as error:
        torch = None
        missing.append(f"torch: {error}")
    else:
        torch.set_num_threads(options.threads)
        versions["torch"] = torch.__version__
    if options.op == "softmax" and options.n % COLUMNS:
        sys.exit(f"--n is {options.n}, but a softmax takes rows of {COLUMNS}")
    x = np.random.default_rng(options.seed).standard_normal(options.n, dtype=np.float32)

    rows, timed = [], []
    for rung, operator, call, error, bound, output_bytes in OPS[options.op](np, x, torch):
        # Not `error > bound`: NaN must fail.
        verified = bool(error <= bound)
        row = {
            "op": options.op,
            "rung": rung,
            "device": "cpu",
            "operator": operator,
            "dtype": "f32",
            "n": options.n,
            "verified": verified,
            "error": float(error),
            "bound": float(bound),
            "bytes": 4 * options.n + output_bytes,
            "traffic": "read" if options.op == "reduce" else "copy",
        }
        rows.append(row)
        if verified:
            timed.append((row, call, []))
        else:
            print(f"{rung} {operator}: the error is {error}, allowed is {bound}", file=sys.stderr)
    ours = []
    for _ in range(ROUNDS):
        if options.upsweep:
            ours.append(bench(options))
        # In each round the first repeat is the warm-up.
        for repeat in range(options.repeats // ROUNDS + 1):
            for _, call, seconds in timed:
                start = time.perf_counter()
                call()
                elapsed = time.perf_counter() - start
                if repeat > 0:
                    seconds.append(elapsed)
    for row, _, seconds in timed:
        seconds.sort()
        median = quantile(seconds, 0.5)
        row.update(
            seconds=median,
            seconds_min=seconds[0],
            seconds_p10=quantile(seconds, 0.1),
            seconds_p90=quantile(seconds, 0.9),
            repeats=len(seconds),
            bytes_per_second=row["bytes"] / median,
        )

    report = {
        "schema": 1,
        "kind": "peers",
        "device": {"kind": "cpu", "name": processor(), "cores": os.cpu_count()},
        "threads": options.threads,
        "seed": options.seed,
        "versions": {"python": platform.python_version(), **versions},
        "missing": missing,
        "rows": rows,
    }
    if ours:
        report = beside(ours, rows, versions)
    text = json.dumps(report, indent=1) + "\n"
    if options.out:
        # The file appears whole or not at all.
        partial = options.out + ".partial"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, options.out)
    else:
        sys.stdout.write(text)
    return 0 if all(row["verified"] for row in rows) else 1


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
