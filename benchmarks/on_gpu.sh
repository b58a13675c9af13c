#!/usr/bin/env bash
# Everything about the kernels that needs a GPU, in steps of at most ten minutes each; results into the folder $OUT.
#
#     OUT=results/new bash benchmarks/on_gpu.sh new        # tests of the newest kernels, regimes, decoding      (10 min)
#     OUT=results/new bash benchmarks/on_gpu.sh table      # the table of shapes, in two processes' turns        (10 min)
#     OUT=results/new bash benchmarks/on_gpu.sh arena      # other packages' attention; wheels in ./wheels        (6 min)
#     OUT=results/new bash benchmarks/on_gpu.sh tests      # make test-gpu                                       (10 min)
#     OUT=results/new bash benchmarks/on_gpu.sh sanitize   # compute-sanitizer on the newest kernels              (6 min)
#     OUT=results/new bash benchmarks/on_gpu.sh engine     # whole training steps, as before                      (6 min)
#
# A part that fails or runs out of its time leaves what it has written, and the next part runs all the same.
set -u -o pipefail
PYTHON=${PYTHON:-python3}
export PYTHONPATH=src:${PYTHONPATH:-} PYTHONUNBUFFERED=1 NVIDIA_TF32_OVERRIDE=0
mkdir -p "$OUT"

part() { # part SECONDS NAME COMMAND...
  local seconds=$1 name=$2
  shift 2
  echo "== $name: $*"
  timeout "$seconds" "$@" > "$OUT/$name.txt" 2>&1
  echo "== $name: exit $?, ${SECONDS}s so far"
  tail -n 25 "$OUT/$name.txt" | cut -c1-200
}

shards() { # shards NAME FILES...: several processes, since most of the time goes into compiling
  local name=$1 count=12 number
  shift
  for number in $(seq $count); do
    SEMFOCUS_TEST_DEVICE=cuda SEMFOCUS_TEST_SHARD=$number/$count timeout 280 \
      "$PYTHON" -m pytest -q -p no:cacheprovider "$@" > "$OUT/shard-$number" 2>&1 &
  done
  wait
  grep -hE "^(FAILED|ERROR|E  )" "$OUT"/shard-* | sort | uniq | cut -c1-300 > "$OUT/$name.txt"
  tail -qn 1 "$OUT"/shard-* >> "$OUT/$name.txt"
  rm -f "$OUT"/shard-*
  cat "$OUT/$name.txt"
}

case $1 in
  new)
    shards new-tests tests/attention/kernels/test_same_set.py tests/attention/kernels/test_threshold.py \
      tests/attention/kernels/test_decode.py tests/attention/kernels/test_recall.py tests/attention/kernels/test_captured.py
    part 120 decode "$PYTHON" benchmarks/kernels.py --decode
    part 180 regimes "$PYTHON" benchmarks/kernels.py --regimes
    ;;
  table)
    part 290 table-1 "$PYTHON" benchmarks/kernels.py --only 0 1 2 3 4 5 6 7 8 9
    part 290 table-2 "$PYTHON" benchmarks/kernels.py --only 10 11 12 13 14 15 16 17 18 19
    ;;
  arena) part 350 arena-log "$PYTHON" benchmarks/arena.py --peers wheels --out "$OUT" ;;
  tests) part 590 test-gpu make test-gpu GPU_PYTHON="$PYTHON" SHARDS=16 ;;
  sanitize)
    for tool in memcheck racecheck; do
      SEMFOCUS_TEST_DEVICE=cuda part 170 "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$PYTHON" -m pytest -q -p no:cacheprovider tests/attention/kernels/test_decode.py \
        tests/attention/kernels/test_threshold.py -k "ties and (causal or lengths or mask or shared)"
    done
    ;;
  engine) part 350 engine "$PYTHON" benchmarks/engine.py --device cuda --precision tf32 --members 10 150 ;;
  *) echo "on_gpu.sh: no step named $1" >&2; exit 2 ;;
esac
