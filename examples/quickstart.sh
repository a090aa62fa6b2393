#!/usr/bin/env bash
# Builds the library and trains one classifier of handwritten digits in four languages, with four strategies, by one to four
# workers. Every run must end with the same parameters, bit for bit, as a run of the same program alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/quickstart
mkdir -p "$build"
. "$root/cmake/requirements.sh"

say "Builds the library, the command, the bindings and the examples in build/quickstart; then trains a classifier of"
say "handwritten digits 41 times, in 4 languages by 4 strategies, and compares what was learned bit for bit."
say "On two cores this takes about two minutes, and two more if packages have to be installed first."
say "It compiles for a short wait and not for speed; cmake --preset release does that, and the same bits come out."

packages=(python3 python3-numpy mono-mcs mono-runtime libmono-system-core4.0-cil)
command -v cargo >/dev/null || packages+=(cargo)
requires_build_tools "${packages[@]}"

run=$(mktemp -d)
children=()
trap 'for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done; rm -rf "$run"' EXIT

# wait_for NAME PID LOG: shows every few seconds how far a build is; shows its log if it fails.
wait_for() {
    local name=$1 child=$2 log=$3 shown="" count
    while kill -0 "$child" 2>/dev/null; do
        count=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$log" 2>/dev/null | tail -n 1 || true)
        [ -z "$count" ] || [[ $count == */[0-9]"]" ]] || [ "$count" = "$shown" ] || say "  $name $count"
        shown=$count
        sleep 1
    done
    wait "$child" || { tail -n 60 "$log"; say "$name: does not build"; exit 1; }
    say "  $name: built after $SECONDS s"
}

say "building the C# binding and example, the library and the command"
bash "$root/bindings/dotnet/build.sh" "$build/dotnet" --no-tests >"$build/dotnet.log" 2>&1 &
children+=($!)
build_targets="trireme trireme_cli example_digits" configure_and_build quick "$build/native" >"$build/native.log" 2>&1 &
children+=($!)
wait_for "library and command" "${children[1]}" "$build/native.build.log"
wait_for "C#" "${children[0]}" "$build/dotnet.log"
export TRIREME_LIBRARY=$build/native/libtrireme.so.1 TRIREME_LIB_DIR=$build/native
export LD_LIBRARY_PATH=$build/native PYTHONPATH=$root/bindings/python
export CARGO_TARGET_DIR=$build/rust
say "building the Rust binding and example"
(cd "$root/bindings/rust" && cargo build -q --release --offline --example digits) >"$build/rust.log" 2>&1 &
children=($!)
wait_for "Rust" "${children[0]}" "$build/rust.log"
children=()

cd "$root"
passes=8 # over the digits; the examples take 20 by themselves

program() {
    case $1 in
    c) echo "$build/native/examples/example_digits" ;;
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
    command="$(program "$1") --passes $passes"
    rm -f "$out"
    case $mode in
    alone) line=$($command --strategy "$strategy" --out "$run/$language.alone") && cp "$run/$language.alone" "$out" ;;
    threads) line=$($command --strategy "$strategy" --threads "$ranks" --out "$out") ;;
    processes)
        line=$("$build/native/trireme" run --no-prefix --nproc-per-node "$ranks" -- \
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
