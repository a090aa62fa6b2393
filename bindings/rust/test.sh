#!/usr/bin/env bash
# Runs the Rust tests, or those named, against TRIREME_LIBRARY: `bindings/rust/test.sh [TEST...]`. Last line: "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")"
: "${TRIREME_LIBRARY:?the path of libtrireme.so.1}"
TRIREME_LIB_DIR=$(dirname "$TRIREME_LIBRARY")
export TRIREME_LIB_DIR LD_LIBRARY_PATH=$TRIREME_LIB_DIR CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$TRIREME_LIB_DIR/../rust}
log=$(mktemp) errors=$(mktemp)
trap 'rm -f "$log" "$errors"' EXIT
# Apart, or the panics that some tests want would be written into the lines that are counted.
cargo test --offline --workspace --no-fail-fast -- "$@" 2>"$errors" | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] || cat "$errors"
begun=$(grep -cE '^ +(Running|Doc-tests) ' "$errors")
more_passed=0 more_failed=0 more_skipped=0
more() { if [ "$2" = 0 ]; then more_passed=$((more_passed + 1)); else more_failed=$((more_failed + 1)); echo "FAILED: $1"; fi; }

[ "$status" -eq 0 ] || [ "$(grep -c '^test result:' "$log")" -ge "$begun" ]
more "every test program comes to its end" $?

if [ $# -eq 0 ]; then # named tests run alone
# The oldest Rust that Cargo.toml promises is Debian 12's: all of it compiles there.
oldest=$(sed -nE 's/^rust-version = "(.*)"/\1/p' Cargo.toml)
. ../../cmake/requirements.sh
requires rustc cargo >/dev/null 2>&1 || true
if [[ $(/usr/bin/rustc --version 2>/dev/null) == "rustc $oldest."* && -x /usr/bin/cargo ]]; then
    PATH=/usr/bin:$PATH CARGO_TARGET_DIR=$CARGO_TARGET_DIR/oldest \
        /usr/bin/cargo check -q --offline --workspace --all-targets >"$errors" 2>&1
    result=$?
    [ $result -eq 0 ] || tail -n 40 "$errors"
    more "all compiles with rustc $oldest" $result
else
    more_skipped=1
    echo "skipped: no rustc $oldest (Debian 12's packages rustc and cargo)"
fi

# Where the library is not found, the build script says what to set.
missing=$(env -u TRIREME_LIB_DIR PKG_CONFIG_LIBDIR=/nonexistent PKG_CONFIG_PATH= \
    CARGO_TARGET_DIR="$CARGO_TARGET_DIR/missing" cargo check --offline -p trireme-sys 2>&1)
grep -q 'set TRIREME_LIB_DIR to the folder of libtrireme.so' <<<"$missing"
more "the build script names TRIREME_LIB_DIR where the library is not found" $?
wrong=$(TRIREME_LIB_DIR=/nonexistent CARGO_TARGET_DIR="$CARGO_TARGET_DIR/missing" \
    cargo check --offline -p trireme-sys 2>&1)
grep -q 'no /nonexistent/libtrireme.so: set TRIREME_LIB_DIR' <<<"$wrong"
more "the build script refuses a TRIREME_LIB_DIR without the library" $?
fi

# One line a test program: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."
sum() { grep -E '^test result:' "$log" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }
failed=$(($(sum failed) + more_failed))
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1 # it did not build
[ $# -eq 0 ] || [ "$(sum passed)" -gt 0 ] || failed=$((failed + 1)) # no test has such a name
sed -nE 's/^test (.*) \.\.\. FAILED$/FAILED  \1/p' "$log" | sed -E 's/ - (compile fail|should panic|compile)$//'
echo "$(($(sum passed) + more_passed)) passed, $failed failed, $(($(sum ignored) + more_skipped)) skipped"
[ "$failed" -eq 0 ]
