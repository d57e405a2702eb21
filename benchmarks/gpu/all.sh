#!/usr/bin/env bash
# Everything that needs a GPU, in one call and within a time limit:
#
#     OUT=results PYTHON=python3 COMMIT=abc1234 benchmarks/gpu/all.sh [cases or subjects of python -m benchmarks.gpu]
#
# Parts, in order: build the native library, describe the machine, run the tests for GPUs, run the tests of the device
# stage under torch's sanitizer, measure the goals, print one line for each goal. A part that fails or runs out of time
# does not stop the parts after it. Needs no network and no git repository.
#
# Environment:
#   OUT     folder for the results; default: a new folder, whose name is printed. Gets log.txt (all output), verdict.txt,
#           parallel.xml, serial.xml and sanitizer.xml (tests), benchmarks.jsonl, rows.csv; earlier ones are deleted.
#   LIMIT   seconds for everything; default 570. All other limits scale with it.
#   GRACE   seconds that a part whose time is over has to print its summary before it is killed; default 12 of the 570, at
#           least 3. More for a slow machine: they are kept free of all parts.
#   DEVICE  "cuda", "cuda:1", ..., or "cpu": tries the script itself at tiny sizes, and judges nothing.
#   COMMIT  what the results name as commit; default: git's answer, or "unknown".
#   TESTS   folder of the tests; default tests/gpu.
#   PARTS   "tests", "benchmarks", or "tests,benchmarks", the default: so that a second call repeats what failed.
#
# The status is 0 if every part ended well and every goal is met. A signal (INT, TERM) ends the part that runs and leads to
# the verdict.
set -uo pipefail

python=${PYTHON:-python3}
limit=${LIMIT:-570}
device=${DEVICE:-cuda}
parts=${PARTS:-tests,benchmarks}
wanted() { [[ ",$parts," == *",$1,"* ]]; }
case $parts in
    tests | benchmarks | tests,benchmarks | benchmarks,tests) ;;
    *)
        echo "PARTS must be tests, benchmarks or tests,benchmarks, got PARTS=$parts" >&2
        exit 2
        ;;
esac
if [ -n "${OUT:-}" ]; then mkdir -p "$OUT"; else OUT=$(mktemp -d -t fastload-gpu.XXXXXX); fi
out=$(cd "$OUT" && pwd) || exit 2
rm -f "$out"/{log.txt,verdict.txt,parallel.xml,serial.xml,sanitizer.xml,benchmarks.jsonl,rows.csv}
tests=$(cd "${TESTS:-$(dirname "$0")/../../tests/gpu}" && pwd) || exit 2
cd "$(dirname "$0")/../.." || exit 2
# This checkout is measured, whether fastload is installed or not.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
commit=${COMMIT:-$(git --no-optional-locks rev-parse --short HEAD 2>/dev/null || echo unknown)}

# One process shows and keeps all output. A process that a part leaves behind can hold its pipe open, but not stop us.
exec 3> >(exec tee -i -a "$out/log.txt")
screen=$!
say() { echo "$@" >&3; }

# Seconds of the default limit -> seconds of this one.
scaled() { echo $(($1 * limit / 570)); }
grace=$(scaled 12)
grace=${GRACE:-$((grace < 3 ? 3 : grace))}

status=0
stopped=
current=
ended=() # what the verdict is told of parts that did not end well
trap 'stopped="the script was interrupted"; [ -z "$current" ] || kill -INT "$current" 2>/dev/null' INT TERM HUP

# Seconds that are left now when RESERVED seconds, and the end of a part that is stopped, are set aside.
room() { echo $((limit - SECONDS - grace - $(scaled "$1"))); }

# part NAME SECONDS RESERVED COMMAND...: run a command for at most SECONDS, and leave RESERVED seconds to later parts.
part() {
    local name=$1 seconds most result="" because
    seconds=$(scaled "$2")
    most=$(room "$3")
    [ "$seconds" -le "$most" ] || seconds=$most
    shift 3
    if [ -n "$stopped" ]; then
        because="not started: $stopped"
    elif [ "$seconds" -lt 1 ]; then
        because="not started: no time was left"
    else
        say "== $name, at $SECONDS s, for at most $seconds s: $*"
        # pytest and the benchmarks print their summaries on SIGINT, which shells ignore for background commands.
        timeout --signal=INT --kill-after="$grace" "$seconds" env --default-signal=INT "$@" >&3 2>&1 &
        current=$!
        wait "$current" 2>/dev/null
        result=$?
        while kill -0 "$current" 2>/dev/null; do # a signal for this script ended the wait
            wait "$current" 2>/dev/null
            result=$?
        done
        current=
        case $result in
            0) return ;;
            124 | 137) because="stopped: its $seconds s were over" ;;
            *) because="ended with status $result${stopped:+: $stopped}" ;;
        esac
    fi
    say "== $name: $because"
    ended+=(--ended "$name=$because")
    status=1
    return "${result:-2}"
}

say "results: $out"
part build 90 420 "$python" setup.py build_ext --inplace
command -v nvidia-smi > /dev/null && part nvidia-smi 15 400 nvidia-smi
part machine 60 390 "$python" -m benchmarks.gpu.machine --device "$device" --commit "$commit"
if [ $? -ne 1 ]; then # 1: there is no device; that it took too long to say so is no reason to stop
    if wanted tests; then
        # Only the plugins that the tests need: others warn, and a warning is an error.
        export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
        plugins=()
        for module in xdist.plugin pytest_timeout _hypothesis_pytestplugin; do
            "$python" -c "import ${module%%.*}" 2>/dev/null && plugins+=(-p "$module")
        done
        # Without the options of pyproject.toml, some of which need a plugin.
        pytest=("$python" -m pytest -o addopts= -W ignore::pytest.PytestConfigWarning "${plugins[@]}" -p no:cacheprovider
            --strict-markers -q -ra --tb=short)
        several=()
        cores=$(nproc)
        [[ " ${plugins[*]} " != *" xdist.plugin "* ]] || several=(-n $((cores < 12 ? cores : 12)))
        parallel=() serial=()
        for file in "$tests"/test_*.py; do
            case ${file##*/} in
                test_gpu_transforms* | test_gpu_training*) parallel+=("$file") ;;
                *) serial+=("$file") ;; # looks at memory or overlap, and shares the device with nobody
            esac
        done
        [ "$device" = cpu ] || export FASTLOAD_REQUIRE_GPU=1
        part "tests in parallel" 140 370 "${pytest[@]}" "${several[@]}" --junitxml="$out/parallel.xml" "${parallel[@]}"
        part "tests one by one" 110 285 "${pytest[@]}" --junitxml="$out/serial.xml" "${serial[@]}"
        if [ "$device" = cpu ]; then
            say "== tests under the sanitizer: not started: it needs a GPU"
        else
            # Without those of fixed buffers: the sanitizer does not know that one is free when the host has seen its event.
            part "tests under the sanitizer" 45 240 env TORCH_CUDA_SANITIZER=1 "${pytest[@]}" \
                -k "not fixed and not num_buffers" --junitxml="$out/sanitizer.xml" \
                "$tests/test_gpu_device.py"
        fi
    fi
    quick=()
    [ "$device" != cpu ] || quick=(--quick)
    if wanted benchmarks; then
        # It ends itself before the part's time is over, with the tables of what it has.
        part benchmarks 570 20 "$python" -m benchmarks.gpu --device "$device" "${quick[@]}" --commit "$commit" \
            --limit "$(room 32)" --json "$out/benchmarks.jsonl" --rows "$out/rows.csv" "$@"
    fi
fi
say "== verdict, at $SECONDS s"
# Not a part: it reads files for a moment, and is due even when time is up.
timeout --kill-after=1 "$((grace < 8 ? 8 : grace))" "$python" -m benchmarks.gpu.verdict --parts "$parts" "${ended[@]}" -- "$out" "$@" 2>&1 |
    tee "$out/verdict.txt" >&3
[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
exec 3>&-
for _ in {1..50}; do
    kill -0 "$screen" 2>/dev/null || break
    sleep 0.1
done
exit "$status"
