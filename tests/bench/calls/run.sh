#!/usr/bin/env bash
# What the bindings add to a call: `run.sh BUILD_FOLDER [ROUNDS]`. Measures all_reduce of 8 bytes in a group of one rank
# in C, Rust, C# and Python in turn and prints the best figure of each, in nanoseconds, and what it is above C's.
# Languages whose tools are missing are skipped. Nothing is asserted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
build=$(realpath "${1:?the folder of libtrireme.so.1}")
rounds=${2:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRIREME_LIBRARY=$build/libtrireme.so.1 LD_LIBRARY_PATH=$build TRIREME_LIB_DIR=$build
export PYTHONPATH=$root/bindings/python CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$work/rust}

cc -O2 -I"$root/include" "$here/calls.c" -o "$work/calls" -L"$build" -ltrireme
names=(C) commands=("$work/calls")
if command -v cargo >/dev/null; then
    cargo build --quiet --release --offline --manifest-path "$root/bindings/rust/Cargo.toml" --example bench_calls
    names+=(Rust) commands+=("$CARGO_TARGET_DIR/release/examples/bench_calls")
fi
if command -v mcs >/dev/null; then
    bash "$root/bindings/dotnet/build.sh" "$work/dotnet"
    mcs -nologo -langversion:7.2 -optimize -r:"$work/dotnet/Trireme.dll" -out:"$work/dotnet/Calls.exe" "$here/Calls.cs"
    names+=("C# (Mono)") commands+=("mono $work/dotnet/Calls.exe")
fi
python=${PYTHON:-python3}
if command -v "$python" >/dev/null; then
    names+=(Python) commands+=("$python $here/calls.py")
fi

for ((round = 0; round < rounds; ++round)); do
    for i in "${!names[@]}"; do
        ${commands[i]} >>"$work/figures.$i"
    done
done
c=$(sort -g "$work/figures.0" | head -n 1)
for i in "${!names[@]}"; do
    best=$(sort -g "$work/figures.$i" | head -n 1)
    awk -v name="${names[i]}" -v best="$best" -v c="$c" \
        'BEGIN { printf "%-10s %9.1f ns   %+9.1f ns above C\n", name, best, best - c }'
done
