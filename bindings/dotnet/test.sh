#!/usr/bin/env bash
# Builds the binding and runs its tests: `bindings/dotnet/test.sh [NAME-PART...]`. TRIREME_LIBRARY names
# libtrireme.so.1, by default that of build/release. Last line: "N passed, N failed, N skipped".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export TRIREME_LIBRARY=${TRIREME_LIBRARY:-$root/build/release/libtrireme.so.1}
export TRIREME_SOURCE=$root
folder=$(dirname "$(realpath "$TRIREME_LIBRARY")")
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
output=$root/build/dotnet

bash "$here/build.sh" "$output" || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
mono --debug "$output/Trireme.Tests.exe" "$@" | tee "$output/mono.log"
status=${PIPESTATUS[0]}
counts=$(tail -n 1 "$output/mono.log")
[[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]] ||
    { echo "mono ended with status $status"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
passed=${BASH_REMATCH[1]} failed=${BASH_REMATCH[2]} skipped=${BASH_REMATCH[3]}
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1

if command -v dotnet >/dev/null; then
    if dotnet run --project "$here/tests/Trireme.Tests.csproj" -c Release -- "$@" |
        tee "$output/dotnet.log" && [[ $(tail -n 1 "$output/dotnet.log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) skipped=$((skipped + BASH_REMATCH[3]))
    else
        failed=$((failed + 1))
    fi
else
    echo "skipped: dotnet is not installed"
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
