#!/usr/bin/env bash
# Builds the library and trains the language model on 2 ranks of this machine: a few minutes on two cores. Arguments go to
# the program, e.g. `bash examples/gpt/run.sh --strategy zero2 --checkpoint 1`.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build
out=$build/gpt
mkdir -p "$out"
. "$root/cmake/requirements.sh"

requires_build_tools
requires libopenblas-dev

say "building the library, the command and the example"
configure_and_build release "$out/release" -DTRIREME_BUILD_TESTS=OFF
gzip -dc "$root/examples/data/trireme.txt.gz" >"$out/trireme.txt"
"$out/release/trireme" run --no-prefix --nproc-per-node 2 -- "$out/release/examples/gpt/example_gpt" \
    --text "$out/trireme.txt" --out "$out" "$@" | tee "$out/run.log"

# The last line has four numbers: first step, last steps, text not trained on, unigram entropy.
grep '^loss: ' "$out/run.log" | grep -oE '[0-9]+\.[0-9]+' | tr '\n' ' ' | awk '{ exit !($2 < $4 && $3 < $4) }' ||
    { say "gpt: FAILED, the model has not learned more than how often each character occurs"; exit 1; }
say "gpt: OK"
