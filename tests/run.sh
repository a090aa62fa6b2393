#!/usr/bin/env bash
# Builds and runs every test: `tests/run.sh [--long] [STEP...]`.
# Steps: release asan tsan python dotnet rust oracle readme cuda quickstart; without any, all of them.
# --long: the big sweeps, and the step `defects`, which seeds one defect at a time for a test to catch.
# What cannot run here is skipped with a line that says why, and counted.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
mkdir -p "$build"
. "$root/cmake/requirements.sh"

passed=0 failed=0 skipped=0
failures=()

steps=()
for argument in "$@"; do
    case $argument in
    --long) export TRIREME_TEST_LONG=1 ;;
    -*) say "usage: tests/run.sh [--long] [STEP...]"; exit 2 ;;
    *) steps+=("$argument") ;;
    esac
done
if [ ${#steps[@]} -eq 0 ]; then
    steps=(release asan tsan python dotnet rust oracle readme cuda quickstart)
    [ -z "${TRIREME_TEST_LONG-}" ] || steps+=(defects)
fi

skip() { skipped=$((skipped + 1)); say "skipped: $*"; }
fail() { failed=$((failed + 1)); failures+=("$*"); say "FAILED: $*"; }

# count_lines FILE: adds up the last "N passed, N failed, N skipped" line of a test program's output.
count_lines() {
    local counts
    counts=$(grep -oE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$1" | tail -n 1)
    [ -n "$counts" ] || return 1
    passed=$((passed + $(grep -oE '[0-9]+ passed' <<<"$counts" | cut -d' ' -f1)))
    failed=$((failed + $(grep -oE '[0-9]+ failed' <<<"$counts" | cut -d' ' -f1)))
    skipped=$((skipped + $(grep -oE '[0-9]+ skipped' <<<"$counts" | cut -d' ' -f1 || true) + 0))
}

# run_ctest PRESET: builds and runs the C and C++ tests. Each test program counts its cmocka tests.
run_ctest() {
    local preset=$1 log=$build/$1.test.log status=0
    if ! configure_and_build "$preset" "$build/$preset"; then
        fail "$preset: does not build"
        return
    fi
    # Fault tests measure time and fill both cores: they run alone, the rest two at a time.
    local counts=$build/$preset/Testing/Temporary
    (cd "$build/$preset" && ctest --no-tests=error --output-on-failure -j2 -LE 'faults|oracle') >"$log" 2>&1 || status=1
    mv -f "$counts/LastTest.log" "$counts/FirstTest.log"
    (cd "$build/$preset" && ctest --no-tests=error --output-on-failure -L faults) >>"$log" 2>&1 || status=1
    # Whether something failed is what ctest says; its lines only tell what and how many.
    local results good bad=0 names=
    results=$(grep -E '^ *[0-9]+/[0-9]+ Test ' "$log")
    good=$(grep -c ' Passed ' <<<"$results")
    if [ $status -ne 0 ]; then
        names=$(grep -vE ' Passed |\*\*\*Skipped ' <<<"$results" |
            sed -E 's/^.*Test +#[0-9]+: ([^ ]+) .*\*\*\*([A-Za-z]+).*$/ \1 (\2)/')
        bad=$(grep -c . <<<"$names")
        [ "$bad" -gt 0 ] || bad=1
        names=$(tr -d '\n' <<<"$names")
        failures+=("$preset:$names")
        grep -vE ' Passed |Start +[0-9]+:' "$log" | tail -n 250
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    skipped=$((skipped + $(grep -c '\*\*\*Skipped ' <<<"$results")))
    say "$preset: $good test programs passed, $bad failed${names:+:$names}"
    # What the tests of faults counted.
    grep -hE '^(kill|mismatch|frozen|crossing|shrink|lifecycle|hostile|network|strangers|skipped):' "$counts/FirstTest.log" "$counts/LastTest.log" || true
}

needs_release() {
    [ -e "$build/release/libtrireme.so.1" ] || configure_and_build release "$build/release" || return 1
    export TRIREME_LIBRARY=$build/release/libtrireme.so.1 TRIREME_COMMAND=$build/release/trireme
}

# run_counted NAME COMMAND...: a test run of a language that ends with a line of counts.
run_counted() {
    local name=$1 log=$build/$1.test.log before=$failed
    shift
    "$@" >"$log" 2>&1
    local status=$?
    if ! count_lines "$log" || { [ $status -ne 0 ] && [ "$failed" -eq "$before" ]; }; then
        fail "$name: ended with status $status"
    fi
    [ $status -eq 0 ] || { tail -n 80 "$log"; [ "$failed" -eq "$before" ] || failures+=("$name"); }
    grep -E '^skipped:' "$log"
    say "$name: $(grep -oE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$log" | tail -n 1)"
}

step_release() { run_ctest release; }
step_asan() { run_ctest asan; }
step_tsan() { run_ctest tsan; }
step_python() {
    requires python3-numpy python3-pip python3-setuptools python3-wheel python3-venv ||
        { skip "python: packages are missing"; return; }
    run_counted python bash "$root/bindings/python/test.sh" "$python"
}
step_dotnet() {
    requires mono-mcs mono-runtime libmono-system-core4.0-cil ||
        { skip "dotnet: Mono is missing"; return; }
    run_counted dotnet bash "$root/bindings/dotnet/test.sh"
}
step_rust() {
    command -v cargo >/dev/null || requires cargo || { skip "rust: cargo is missing"; return; }
    run_counted rust bash "$root/bindings/rust/test.sh"
}
step_oracle() {
    requires python3-torch || { skip "oracle: PyTorch (python3-torch) is missing"; return; }
    cmake --build "$build/release" --target oracle_trajectory >/dev/null || { fail "oracle: does not build"; return; }
    run_counted oracle "$python" "$root/tests/oracle/test_pytorch.py" "$build/release/tests/oracle/oracle_trajectory"
    run_counted oracle_schedules "$python" "$root/tests/oracle/test_schedules.py" "$build/release/libtrireme.so.1"
}
step_defects() { run_counted defects "$python" "$root/tests/faults/seeded_defects.py"; }
step_readme() { run_counted readme "$python" "$root/tests/readme/test_readme.py"; }
step_cuda() { skip "cuda: the CUDA and NCCL backends are not in this release; capabilities say so"; }
step_quickstart() {
    if bash "$root/examples/quickstart.sh" >"$build/quickstart.log" 2>&1; then
        passed=$((passed + 1))
        say "quickstart: $(tail -n 1 "$build/quickstart.log")"
    else
        fail "quickstart"
        tail -n 60 "$build/quickstart.log"
    fi
}

requires_build_tools && requires libcmocka-dev python3 || { say "cannot build"; exit 1; }
requires libopenblas-dev || skip "examples/gpt: OpenBLAS is missing"
requires libgloo-dev || skip "backend gloo: Gloo (libgloo-dev) is missing"
requires openmpi-bin libopenmpi-dev mpich libmpich-dev || skip "mpi://: Open MPI and MPICH are missing"
for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || { say "no step $step"; exit 2; }
    case $step in
    python | dotnet | rust | oracle | readme)
        needs_release || { fail "$step: the library does not build"; continue; } ;;
    esac
    started=$SECONDS
    say "== $step"
    "step_$step"
    say "== $step: $((SECONDS - started)) s"
done

for failure in "${failures[@]}"; do say "failed: $failure"; done
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
