#!/usr/bin/env bash
# Everything that is recorded of one CUDA device, as the files of records/ are named.
# Usage: peers/measure.sh UPSWEEP_BINARY OUTPUT_FOLDER [timed|shapes|checks|all]
#   timed   the checklist with the reduction's ladder, benches beside CUB and torch, the other ladders; nothing else may run
#           meanwhile. Ends with 3 if the run calls itself invalid: figures of a slow device are no records.
#   shapes  scans at every point of the list of shapes, beside CUB and torch, and which points stand out; ends with 1 if any do
#   checks  full and huge cases, then the memory checkers
# Needs: the device, NVRTC, nvcc and compute-sanitizer of the CUDA toolkit on the path, for torch's rows Python with torch.
set -u
upsweep=$1 out=$2 part=${3:-all}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
failed=0
step() {
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  echo "$name: exit $status ($((SECONDS - start)) s)"
  [ $status -eq 0 ] && return
  tail -n 15 "$out/$name.log"
  failed=1
}
uname -r
"$upsweep" --version
# Gigabytes of expectations are freed and made again for every row: memory that stays with the process is not zeroed anew.
export GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=99999999999

build_cub() {
  step build_cub 120 nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC "$here/cub.cu" -o "$out/libcub.so"
}

timed() {
  local common=(--device cuda --repeats 30 --format json)
  build_cub
  step checklist 300 "$upsweep" checklist --device cuda --ladder "$out/reduce-ladder.json" --format json --out "$out/checklist.json"
  python3 - "$out/reduce-ladder.json" <<'PYTHON' || exit 3
import json, sys
record = json.load(open(sys.argv[1]))
read = max(ceiling["bytes_per_second"] for ceiling in record["ceilings"])
print(f"read ceiling {read / 1e9:.0f} GB/s", *record["invalid"], sep="; ")
sys.exit(bool(record["invalid"]))
PYTHON
  step bench_reduce 200 "$upsweep" bench reduce "${common[@]}" --operator sum,max,argmax --n "2^10,2^16,2^20,2^24,2^26,2^28" \
    --peer "$out/libcub.so" --out "$out/reduce-bench.json"
  step bench_softmax 200 "$upsweep" bench softmax "${common[@]}" --operator softmax --out "$out/softmax-peers.json"
  step torch 200 python3 "$here/torch_softmax.py" "$out/softmax-peers.json"
  step bench_scan 200 "$upsweep" bench scan "${common[@]}" --operator sum,max --n "2^20,2^24,2^28" --peer "$out/libcub.so" \
    --out "$out/scan-bench.json"
  step goals_scan 590 "$upsweep" bench scan "${common[@]}" --goals --peer "$out/libcub.so" --out "$out/scan-goals.json"
  step ladder_scan 200 "$upsweep" ladder scan "${common[@]}" --peer "$out/libcub.so" --out "$out/scan-ladder.json"
  step ladder_softmax 200 "$upsweep" ladder softmax "${common[@]}" --out "$out/softmax-ladder.json"
}

shapes() {
  local record="$out/scan-shapes.json"
  build_cub
  step bench_shapes 590 "$upsweep" bench scan --device cuda --repeats 30 --shapes --operator sum --peer "$out/libcub.so" \
    --format json --out "$record"
  # Compiling takes seconds a shape: as many turns as it takes.
  local status=3
  while [ $status -eq 3 ]; do
    python3 "$here/torch_scan.py" "$record" --seconds 450 >"$out/torch_scan.log" 2>&1
    status=$?
    tail -n 3 "$out/torch_scan.log"
  done
  [ $status -eq 0 ] || failed=1
  step review 20 "$upsweep" review "$record"
  cat "$out/review.log"
  # The record keeps what was found; that something was is told above.
  "$upsweep" review "$record" --format json --out "$record"
}

checks() {
  local op jobs=()
  verify() { step "$1-verify-$2" 500 "$upsweep" verify "$1" --device cuda --cases "$2" --format json --out "$out/$1-verify-$2.json"; return $failed; }
  for op in reduce scan softmax; do
    verify $op full &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  for op in reduce scan softmax; do verify $op huge; done
  for op in reduce scan softmax; do
    step "sanitize_$op" 560 bash "$here/sanitize.sh" "$upsweep" "$out/sanitize-$op" $op
    cat "$out/sanitize_$op.log"
    cp "$out/sanitize-$op/sanitizer.jsonl" "$out/$op-sanitizer.jsonl"
  done
}

case $part in
timed) timed ;;
shapes) shapes ;;
checks) checks ;;
all) timed && shapes; checks ;;
*) echo "the part is timed, shapes, checks or all" >&2 && exit 2 ;;
esac
exit $failed
