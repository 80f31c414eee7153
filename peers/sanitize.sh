#!/usr/bin/env bash
# The quick cases under each tool of compute-sanitizer, with exact allocations so that every stray access shows.
# Usage: peers/sanitize.sh UPSWEEP_BINARY OUTPUT_FOLDER [OP]
# Without an operation: all of them.
# The wrong kernels are left out: their faults are what the tools look for. Writes sanitizer.jsonl.
set -u
upsweep=$1 out=$2 op=${3:-}
mkdir -p "$out"
export UPSWEEP_EXACT_ALLOCATIONS=1
# Kernels whose barriers racecheck can follow: each lane arrives for itself, where else one arrives for its warp.
export UPSWEEP_RACECHECK=1
# Few blocks, so that each takes many tiles of these small arrays and uses its shared memory again.
export UPSWEEP_MULTIPROCESSORS=4
check() {
  local tool=$1 rung=$2 start=$SECONDS status summary name
  local options=(--tool "$tool" --error-exitcode 99 --print-limit 20) cases=(--cases quick --no-wrong-kernels)
  [ "$tool" = memcheck ] && options+=(--leak-check no)
  # racecheck takes some milliseconds a block: rows by the ten thousand are for the other tools.
  [ "$tool" = racecheck ] && cases+=(--few-rows)
  name=$tool-${rung/\//-}
  timeout 500 compute-sanitizer "${options[@]}" "$upsweep" verify "$rung" --device cuda "${cases[@]}" >"$out/$name.log" 2>&1
  status=$?
  summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 1 | sed 's/=* *//' | tr -d '"')
  echo "{\"tool\":\"$tool\",\"rung\":\"$rung\",\"exit\":$status,\"summary\":\"$summary\",\"seconds\":$((SECONDS - start))}" >"$out/$name.row"
  echo "$tool $rung: exit $status, $summary ($((SECONDS - start)) s)"
}
# A process a tool and rung, as many side by side as there are processors: each is slow on the host, and none is timed.
# racecheck first: it takes longest.
rungs=$("$upsweep" list --format csv | awk -F, -v op="$op" '$2 == "cuda" && (op == "" || index($1, op "/") == 1) { print $1 }')
[ -n "$rungs" ] || { echo "no rung of '$op'" >&2; exit 2; }
rm -f "$out"/*.row
for tool in racecheck memcheck synccheck initcheck; do
  for rung in $rungs; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.1; done
    check "$tool" "$rung" &
  done
done
wait
rows=$(cat "$out"/*.row | paste -sd,)
commit=$("$upsweep" --version | grep -oE '[0-9a-f]{40}(-dirty)?' | head -n 1)
echo "{\"kind\":\"sanitizer\",\"commit\":\"$commit\",\"command\":\"upsweep verify RUNG --device cuda --cases quick --no-wrong-kernels\",\"rows\":[$rows]}" >"$out/sanitizer.jsonl"
# The verdict is the rows': each there, ended with 0, and with a summary of nothing found.
clean=$(grep -lE '"exit":0,"summary":"(ERROR|RACECHECK) SUMMARY: 0 ' "$out"/*.row | wc -l)
asked=$((4 * $(wc -w <<<"$rungs")))
echo "$clean of $asked clean"
[ "$clean" -eq "$asked" ]
