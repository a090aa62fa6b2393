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
# One line a test program: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."
sum() { grep -E '^test result:' "$log" | grep -oE "[0-9]+ $1" | awk '{n += $1} END {print n + 0}'; }
failed=$(sum failed)
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1 # it did not build
sed -nE 's/^test (.*) \.\.\. FAILED$/FAILED  \1/p' "$log"
echo "$(sum passed) passed, $failed failed, $(sum ignored) skipped"
exit "$status"
