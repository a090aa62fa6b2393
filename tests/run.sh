#!/usr/bin/env bash
# Builds and runs every test: `tests/run.sh [--quick] [--long] [--times] [STEP...]`.
# Steps: release asan tsan python dotnet rust oracle readme cuda quickstart; without any, all of them.
# --quick: for people at work. Builds the release tree, runs its unit, API and gate tests with small sizes, and the
#          suite of each language whose binding differs from the last commit.
# --long:  the big sweeps, and the step `defects`, which seeds one defect at a time for a test to catch.
# --times: ends with the seconds of each step and the 20 slowest programs.
# A test that fails is run once more, alone. If it passes then, it counts as flaky and is named in the last lines; more
# than three of those fail the run. The report of a sanitizer in a failed test fails at once: it may come but once.
# A skipped program is counted, too, with a line that says why. A program that passes may have skipped tests of its own:
# another line tells how many, by program.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
mkdir -p "$build"
. "$root/cmake/requirements.sh"

passed=0 failed=0 skipped=0
failures=() flaky=()
quick= show_times= release_is_built=
times=$build/times.txt
: >"$times"

steps=()
for argument in "$@"; do
    case $argument in
    --quick) quick=1; export TRIREME_TEST_QUICK=1 ;;
    --long) export TRIREME_TEST_LONG=1 ;;
    --times) show_times=1 ;;
    -*) say "usage: tests/run.sh [--quick] [--long] [--times] [STEP...]"; exit 2 ;;
    *) steps+=("$argument") ;;
    esac
done
if [ ${#steps[@]} -eq 0 ] && [ -n "$quick" ]; then
    steps=(release)
    for language in python dotnet rust; do
        [ -z "$(git -C "$root" status --porcelain -- "bindings/$language" 2>/dev/null)" ] || steps+=("$language")
    done
elif [ ${#steps[@]} -eq 0 ]; then
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

# with_report LOG: the tests of a whole log of ctest that failed with a sanitizer's report in their output.
with_report() {
    awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3; found = 0 }
        /(Thread|Address|Leak|Memory)Sanitizer|runtime error:/ { found = 1 }
        /^Test Failed\.$/ { if (found) print name; found = 0 }' "$1"
}

# run_group PRESET LOG CTEST-OPTION...: runs tests of a tree, and once more, one at a time, those that failed. Counts them.
run_group() {
    local preset=$1 log=$2 status=0
    shift 2
    ctest --test-dir "$build/$preset" --no-tests=error --output-on-failure "$@" >"$log" 2>&1 || status=1
    mv -f "$build/$preset/Testing/Temporary/LastTest.log" "$log.whole"
    sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*$/\2 '"$preset"' \1/p' "$log" >>"$times"
    passed=$((passed + $(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log")))
    skipped=$((skipped + $(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped ' "$log")))
    [ $status -ne 0 ] || return

    # Whether something failed is what ctest says; its lines only tell what.
    local name again=$log.again names reported
    reported=$(with_report "$log.whole")
    names=$(grep -E '^ *[0-9]+/[0-9]+ Test ' "$log" | grep -vE ' Passed |\*\*\*Skipped ' |
        sed -E 's/^.*Test +#[0-9]+: ([^ ]+) .*$/\1/')
    grep -vE ' Passed |Start +[0-9]+:' "$log" | tail -n 250
    if [ -z "$names" ]; then
        fail "$preset: ctest"
    fi
    for name in $names; do
        if grep -qxF -- "$name" <<<"$reported"; then
            fail "$preset: $name (a sanitizer's report)"
        elif ctest --test-dir "$build/$preset" --no-tests=error --output-on-failure -R "^$name\$" >"$again" 2>&1 &&
            grep -qE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$again"; then
            passed=$((passed + 1))
            flaky+=("$preset $name")
            say "flaky: $preset $name passes alone"
        else
            fail "$preset: $name ($(grep -oE '\*\*\*[A-Za-z]+' "$again" | head -n 1 | tr -d '*'))"
            grep -vE 'Start +[0-9]+:' "$again" | tail -n 80
        fi
    done
}

# skipped_inside PRESET LOG...: tells how many tests programs have skipped, by whole logs of ctest. The programs passed.
skipped_inside() {
    local preset=$1
    shift
    awk -v preset="$preset" '/^[0-9]+\/[0-9]+ Testing: / { name = $3 }
        /^ [0-9]+ SKIPPED TEST\(S\)$/ { found = $1; skipped[name] += found; all += found }
        /^(OK|FAILED) \(.*skipped=[0-9]+/ {
            found = $0; sub(/.*skipped=/, "", found); found += 0; skipped[name] += found; all += found
        }
        END {
            if (!all) exit
            printf "%s: %d tests skipped by programs:", preset, all
            for (name in skipped) printf " %s %d", name, skipped[name]
            print ""
        }' "$@"
}

# run_ctest PRESET: builds and runs the C and C++ tests. Each test program counts its cmocka tests.
# Two cores have four places, of which a test that mostly sleeps takes one, and any other test two.
run_ctest() {
    local preset=$1 log=$build/$1.test.log before=$passed started=$SECONDS
    if ! configure_and_build "$preset" "$build/$preset"; then
        fail "$preset: does not build"
        return
    fi
    [ "$preset" != release ] || release_is_built=1
    say "$preset: built in $((SECONDS - started)) s"
    rm -f "$log"*
    if [ -n "$quick" ]; then
        run_group "$preset" "$log" -j4 -L 'unit|api|gate' -LE slow
    else
        # Fault tests are not beside others: those would make them miss their deadlines.
        run_group "$preset" "$log" -j4 -LE 'faults|oracle'
        # They wait for deadlines and for deaths: with four places a third of the processors' time was idle.
        run_group "$preset" "$log.faults" -j5 -L faults
    fi
    say "$preset: $((passed - before)) test programs passed"
    # The counts that the fault tests print.
    grep -hE '^(kill|mismatch|frozen|crossing|shrink|lifecycle|hostile|network|strangers|newcomers|meeting|signs|slow|children|skipped|trials):' "$log"*.whole || true
    skipped_inside "$preset" "$log"*.whole
}

# What lies there may be of older sources.
needs_release() {
    [ -n "$release_is_built" ] || configure_and_build release "$build/release" || return 1
    release_is_built=1
    export TRIREME_LIBRARY=$build/release/libtrireme.so.1 TRIREME_COMMAND=$build/release/trireme
}

# run_counted NAME COMMAND...: a test run of a language that ends with a line of counts. It names a failed test by a line
# `FAILED  TEST: ...` and takes names of tests as further arguments. What cannot run alone is `FAILED: ...` there.
run_counted() {
    local name=$1 log=$build/$1.test.log before=$failed started=$SECONDS status=0 names bad
    shift
    rm -f "$log.again"
    "$@" >"$log" 2>&1 || status=$?
    echo "$((SECONDS - started)) $name (all of its tests)" >>"$times"
    grep -E '^skipped:' "$log"
    if [ $status -ne 0 ]; then
        tail -n 80 "$log"
        mapfile -t names < <(sed -nE 's/^FAILED  (.*)$/\1/p' "$log" | sed 's/: .*//' | sort -u)
        # A failure without a name cannot run alone: then all of them are failures.
        bad=$(grep -oE '[0-9]+ failed' "$log" | tail -n 1 | cut -d' ' -f1)
        if [ ${#names[@]} -gt 0 ] && [ "$(grep -c '^FAILED  ' "$log")" -ge "${bad:-0}" ] && "$@" "${names[@]}" >"$log.again" 2>&1 &&
            grep -qE '^[1-9][0-9]* passed, 0 failed' "$log.again"; then
            # The second run gives the verdict alone: it may run neighbours of those names once more.
            count_lines "$log"
            failed=$before passed=$((passed + ${#names[@]}))
            for bad in "${names[@]}"; do flaky+=("$name $bad"); say "flaky: $name $bad passes alone"; done
        else
            [ ! -e "$log.again" ] || tail -n 80 "$log.again"
            count_lines "$log"
            [ "$failed" -gt "$before" ] || failed=$((failed + 1))
            failures+=("$name: ${names[*]:-ended with status $status}")
        fi
    elif ! count_lines "$log" || [ "$failed" -ne "$before" ]; then
        fail "$name: ended with status 0 and no good line of counts"
    fi
    say "$name: $(grep -oE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$log" | tail -n 1)"
}

step_release() { run_ctest release; }
step_asan() { run_ctest asan; }
step_tsan() { run_ctest tsan; }
step_python() {
    requires python3-numpy python3-pip python3-setuptools python3-wheel python3-venv ||
        { skip "python: packages are missing"; return; }
    requires python3-torch || skip "python: tests with PyTorch: python3-torch is missing"
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
step_cuda() {
    command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || skip "cuda: nvcc is missing: the plugin has no kernels"
    skip "cuda: no test needs a device: tests/gpu/run.sh is for a machine that has one, and runs dry here"
}
step_quickstart() {
    # On a machine that has nothing yet: here, by now, everything is installed.
    local status=0
    bash "$root/tests/bare/run.sh" 'bash examples/quickstart.sh' >"$build/quickstart.log" 2>&1 || status=$?
    case $status in
    0)
        passed=$((passed + 1))
        say "quickstart: $(tail -n 1 "$build/quickstart.log")" ;;
    77) skip "quickstart: $(tail -n 1 "$build/quickstart.log" | sed 's/^skipped: //')" ;;
    *)
        fail "quickstart"
        tail -n 60 "$build/quickstart.log" ;;
    esac
}

requires_build_tools && requires libcmocka-dev python3 || { say "cannot build"; exit 1; }
requires python3-numpy || skip "tests with numpy: python3-numpy is missing"
requires iproute2 || skip "tests between hosts: ip (iproute2) is missing"
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
    echo "$((SECONDS - started)) == $step" >>"$times"
done

if [ -n "$show_times" ]; then
    say "seconds of each step, of all: $SECONDS"
    grep ' == ' "$times"
    say "seconds of the 20 slowest programs"
    grep -v ' == ' "$times" | sort -rn | head -n 20
fi
if [ ${#flaky[@]} -gt 3 ]; then
    fail "${#flaky[@]} flaky tests are more than three"
fi
for failure in "${failures[@]}"; do say "failed: $failure"; done
for test in "${flaky[@]}"; do say "flaky: $test"; done
say "${#flaky[@]} flaky"
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
