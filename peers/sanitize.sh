#!/usr/bin/env bash
# The quick cases under each tool of compute-sanitizer, with exact allocations so that every stray access shows.
# Usage: peers/sanitize.sh UPSWEEP_BINARY OUTPUT_FOLDER [OP]
# Without an operation: all of them.
# The wrong kernels are left out: their faults are what the tools look for. Writes sanitizer.jsonl.
set -u
upsweep=$1 out=$2 op=${3:-}
mkdir -p "$out"
export UPSWEEP_EXACT_ALLOCATIONS=1
check() {
  local tool=$1 start=$SECONDS status summary
  local options=(--tool "$tool" --error-exitcode 99 --print-limit 20)
  [ "$tool" = memcheck ] && options+=(--leak-check no)
  timeout 500 compute-sanitizer "${options[@]}" "$upsweep" verify $op --device cuda --cases quick --no-wrong-kernels >"$out/$tool.log" 2>&1
  status=$?
  summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.log" | tail -n 1 | sed 's/=* *//' | tr -d '"')
  echo "{\"tool\":\"$tool\",\"exit\":$status,\"summary\":\"$summary\",\"seconds\":$((SECONDS - start))}" >"$out/$tool.row"
  echo "$tool: exit $status, $summary ($((SECONDS - start)) s)"
  return $status
}
# Side by side: each is slow on the host, and none is timed.
tools=(memcheck racecheck synccheck initcheck) jobs=() failed=0
for tool in "${tools[@]}"; do
  check "$tool" &
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
rows=$(for tool in "${tools[@]}"; do cat "$out/$tool.row"; done | paste -sd,)
commit=$("$upsweep" --version | grep -oE '[0-9a-f]{40}(-dirty)?' | head -n 1)
echo "{\"kind\":\"sanitizer\",\"commit\":\"$commit\",\"command\":\"upsweep verify ${op:+$op }--device cuda --cases quick --no-wrong-kernels\",\"rows\":[$rows]}" >"$out/sanitizer.jsonl"
exit $failed
