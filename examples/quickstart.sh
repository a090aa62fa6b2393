#!/usr/bin/env bash
# Builds the library and trains one classifier of handwritten digits in four languages, with four strategies, by one to four
# workers. Every run must end with the same parameters, bit for bit, as a run of the same program alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build
mkdir -p "$build"
. "$root/cmake/requirements.sh"

requires_build_tools
requires python3 python3-numpy mono-mcs mono-runtime libmono-system-core4.0-cil
command -v cargo >/dev/null || requires cargo

say "building the library, the command and the examples"
configure_and_build release "$build/release"
export TRIREME_LIBRARY=$build/release/libtrireme.so.1 TRIREME_LIB_DIR=$build/release
export LD_LIBRARY_PATH=$build/release PYTHONPATH=$root/bindings/python
export CARGO_TARGET_DIR=$build/rust
bash "$root/bindings/dotnet/build.sh" "$build/dotnet" >"$build/dotnet.log" 2>&1 || { cat "$build/dotnet.log"; exit 1; }
(cd "$root/bindings/rust" && cargo build -q --release --offline --example digits)

run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
cd "$root"

program() {
    case $1 in
    c) echo "$build/release/examples/example_digits" ;;
    python) echo "$python examples/digits/digits.py" ;;
    csharp) echo "mono $build/dotnet/Digits.exe" ;;
    csharp_layers) echo "mono $build/dotnet/Digits.exe --train layers --checkpoint-every 1" ;;
    rust) echo "$build/rust/release/examples/digits" ;;
    esac
}

bad=0
printf '%-8s %-14s %5s %-9s %8s %7s  %-15s %-15s %-17s %-15s %s\n' language strategy ranks mode accuracy seconds \
    "parameters" "gradients" "optimizer state" "working" difference
printf '%66s%s\n' '' '(bytes of rank 0, planned/allocated)'

# row LANGUAGE[_WAY] STRATEGY RANKS MODE: trains, compares with the language's run alone, prints one row.
row() {
    local language=${1%_*} strategy=$2 ranks=$3 mode=$4 out=$run/out line command
    command=$(program "$1")
    rm -f "$out"
    case $mode in
    alone) line=$($command --strategy "$strategy" --out "$run/$language.alone") && cp "$run/$language.alone" "$out" ;;
    threads) line=$($command --strategy "$strategy" --threads "$ranks" --out "$out") ;;
    processes)
        line=$("$build/release/trireme" run --no-prefix --nproc-per-node "$ranks" -- \
            $command --strategy "$strategy" --out "$out") ;;
    esac || { say "$1 $strategy $ranks $mode: FAILED"; bad=1; return 0; }
    "$python" "$root/examples/digits/row.py" "$line" "$out" "$run/$language.alone" "$mode" || bad=1
}

for language in c python csharp rust; do
    row $language data_parallel 1 alone
    for strategy in data_parallel zero1 zero2 zero3; do row $language $strategy 4 processes; done
done
row csharp_layers zero3 4 processes
for ranks in 1 2 3; do
    for strategy in data_parallel zero1 zero2 zero3; do row c $strategy $ranks processes; done
done
for language in c csharp; do
    for strategy in data_parallel zero1 zero2 zero3; do row $language $strategy 4 threads; done
done

[ $bad -eq 0 ] || { say "quickstart: FAILED"; exit 1; }
say "quickstart: OK"
