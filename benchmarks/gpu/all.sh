#!/usr/bin/env bash
# All that needs a GPU, in one call: what machine this is, the tests, the benchmarks. From anywhere, without a network:
#
#     OUT=out PYTHON=python3 benchmarks/gpu/all.sh [arguments of python -m benchmarks.gpu ...]
#
# Leaves in $OUT (default: out): machine.txt, tests.log, benchmarks.log, benchmarks.jsonl, rows.md. Each part has a time
# limit of its own, in seconds (TESTS_LIMIT, BENCHMARKS_LIMIT), and the ones behind it run whatever became of it. The
# status is 0 if all of them ended well.
set -uo pipefail

python=${PYTHON:-python3}
mkdir -p "${OUT:-out}"
out=$(cd "${OUT:-out}" && pwd)
cd "$(dirname "$0")/../.."
# The checkout is what is measured, whether fastload is installed or not.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
commit=${COMMIT:-$(git --no-optional-locks rev-parse --short HEAD 2>/dev/null || echo unknown)}
status=0

# part NAME SECONDS COMMAND...: the output goes to the screen and to $out/NAME
part() {
    local log=$out/$1 limit=$2
    shift 2
    echo "== $*"
    # TERM first, on which benchmarks and pytest end their processes.
    timeout --kill-after=20 "$limit" "$@" 2>&1 | tee -a "$log"
    local result=${PIPESTATUS[0]}
    if [ "$result" -ne 0 ]; then
        echo "== ended with status $result$([ "$result" -eq 124 ] && echo " after $limit s")" | tee -a "$log"
        status=1
    fi
}

rm -f "$out"/{machine.txt,tests.log,benchmarks.log,benchmarks.jsonl,rows.md}
echo "commit $commit" | tee "$out/machine.txt"
part machine.txt 60 "$python" - <<'PYTHON'
import os, platform
from importlib.metadata import PackageNotFoundError, version
import torch
print("python", platform.python_version(), "on", os.cpu_count(), "cores,", platform.platform())
for name in ("torch", "torchvision", "triton", "numpy", "kornia", "pytest", "hypothesis", "rich"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "is not installed")
print("cuda", torch.version.cuda, torch.cuda.get_device_name() if torch.cuda.is_available() else "and no device")
import fastload
print("fastload", fastload.__file__)
PYTHON
part machine.txt 30 nvidia-smi
export FASTLOAD_REQUIRE_GPU=1
part tests.log "${TESTS_LIMIT:-150}" "$python" -m pytest tests/gpu -q -p no:cacheprovider
part benchmarks.log "${BENCHMARKS_LIMIT:-360}" "$python" -m benchmarks.gpu --commit "$commit" \
    --json "$out/benchmarks.jsonl" --rows "$out/rows.md" "$@"
exit "$status"
