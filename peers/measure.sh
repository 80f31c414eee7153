#!/usr/bin/env bash
# Everything that is recorded of one CUDA device, in one go: verification, memory checkers, ladder, bench beside CUB,
# checklist. Usage: peers/measure.sh UPSWEEP_BINARY OUTPUT_FOLDER [quick]
# Needs: the device, NVRTC, nvcc and compute-sanitizer of the CUDA toolkit on the path.
set -u
upsweep=$1 out=$2 mode=${3:-all}
mkdir -p "$out"
failed=0
step() {
  local name=$1 limit=$2
  shift 2
  local start=$SECONDS
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then echo "ok     $name ($((SECONDS - start)) s)"; else
    echo "FAILED $name: exit $? ($((SECONDS - start)) s)"
    tail -n 15 "$out/$name.log"
    failed=1
  fi
}
here=$(cd "$(dirname "$0")" && pwd)
uname -r
step doctor 60 "$upsweep" doctor
step build_cub 120 nvcc -O3 -std=c++17 -arch=native -shared -Xcompiler -fPIC "$here/cub.cu" -o "$out/libcub.so"
peer=()
[ -f "$out/libcub.so" ] && peer=(--peer "$out/libcub.so")

step ladder 240 "$upsweep" ladder reduce --device cuda --n 2^28 --repeats 30 --format json --out "$out/ladder-sum-f32.json"
step bench 400 "$upsweep" bench reduce --device cuda "${peer[@]}" --repeats 30 --format json --out "$out/bench-f32.json"
if [ "$mode" = quick ]; then
  step verify 300 "$upsweep" verify reduce --device cuda --cases quick --format json --out "$out/verify-quick.json"
else
  step verify 590 "$upsweep" verify reduce --device cuda --cases full --format json --out "$out/verify-full.json"
  step huge 300 "$upsweep" verify reduce --device cuda --cases huge --format json --out "$out/verify-huge.json"
  step checklist 200 "$upsweep" checklist --device cuda --format json --out "$out/checklist.json"
fi
exit $failed
