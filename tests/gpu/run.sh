#!/usr/bin/env bash
# Checks and measures the library on a machine with a GPU: `tests/gpu/run.sh [--pack [FOLDER] | --dry FOLDER]`. What it runs takes at
# most 7 minutes, behind a build where there is no pack. Its last lines are a table, whatever fails. Correctness alone sets
# the exit status.
# --pack: anywhere, builds all that is needed, or takes it from the build tree FOLDER, into build/trireme-gpu.tar. Unpack it
#         on that machine and call its run.sh.
# --dry FOLDER: runs all of it over the driver of the tests in the build tree FOLDER, with small sizes. No time is told.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=(unit_test_device_kernels gpu_work gpu_collectives)

build_release() { # FOLDER
    cmake --preset release -S "$root" -B "$1" >"$1.log" 2>&1 &&
        cmake --build "$1" --target trireme trireme_cli trireme_cuda "${programs[@]}" >>"$1.log" 2>&1 ||
        { tail -n 40 "$1.log"; echo "it does not build"; exit 1; }
}

pack() { # FOLDER
    local folder=$root/build/trireme-gpu
    [ -n "$1" ] || build_release "$root/build/gpu"
    set -- "${1:-$root/build/gpu}"
    rm -rf "$folder" && mkdir -p "$folder/bin" "$folder/lib"
    cp "$1/trireme" "$folder/bin/" || exit 1
    for program in "${programs[@]}"; do cp "$1/tests/$program" "$folder/bin/" || exit 1; done
    cp -L "$1/libtrireme.so.1" "$1/libtrireme_cuda.so" "$folder/lib/" || exit 1
    # Their few libraries, but the system's own.
    ldd "$folder"/bin/* | sed -nE 's/^.* => (.*) \(.*$/\1/p' | grep -vE '/(libc|libm|ld-linux[^/]*|libpthread|libdl|librt)\.so|libtrireme' |
        sort -u | xargs -rI{} cp -L {} "$folder/lib/"
    strip --strip-unneeded "$folder"/bin/* "$folder"/lib/libtrireme* 2>/dev/null || true
    cp "$here/run.sh" "$folder/"
    tar -C "$root/build" -cf "$root/build/trireme-gpu.tar" trireme-gpu
    echo "$root/build/trireme-gpu.tar: $(($(stat -c %s "$root/build/trireme-gpu.tar") >> 20)) MiB"
    LD_LIBRARY_PATH=$folder/lib TRIREME_CUDA_PLUGIN=$folder/lib/libtrireme_cuda.so "$folder/bin/trireme" doctor | grep -E '^ *plugin'
}

dry=
case ${1-} in
--pack) root=$(cd "$here/../.." && pwd); pack "${2-}"; exit ;;
--dry)
    dry=1 folder=${2:?the build tree}
    bin=$folder/tests command=$folder/trireme library=$folder
    export TRIREME_CUDA_PLUGIN=$folder/tests/fake_plugin.so TRIREME_CUDA_DRIVER=$folder/tests/fake_cuda.so
    export TRIREME_NCCL_LIBRARY=/nowhere/libnccl.so.2 FAKE_CUDA=mode=lazy TRIREME_TEST_QUICK=1 ;;
"")
    if [ -d "$here/bin" ]; then
        bin=$here/bin command=$here/bin/trireme library=$here/lib
    else
        root=$(cd "$here/../.." && pwd)
        build_release "$root/build/gpu"
        bin=$root/build/gpu/tests command=$root/build/gpu/trireme library=$root/build/gpu
    fi
    export TRIREME_CUDA_PLUGIN=$library/libtrireme_cuda.so ;;
*) echo "usage: tests/gpu/run.sh [--pack [FOLDER] | --dry FOLDER]"; exit 2 ;;
esac
export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

passed=0 failed=0
# stage NAME SECONDS COMMAND...: its output goes to a log, and to the screen.
stage() {
    local name=$1 seconds=$2 status=0
    shift 2
    echo "== $name"
    timeout -k 5 "$seconds" bash -c '"$@"' stage "$@" >"$log/$name" 2>&1 || status=$?
    tail -n 60 "$log/$name"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name: $([ $status -eq 124 ] && echo "it is not done after $seconds s" || echo "status $status")"
    fi
}

# What the library has found, and whether a device is among it.
doctor() {
    "$command" doctor | sed -n '/^devices/,/^machine/p'
    [ "${PIPESTATUS[0]}" -eq 0 ]
}
has_kernels() { grep -q 'with kernels for' "$log/doctor" || [ -n "$dry" ]; }
kernels() { TRIREME_TEST_DEVICE=0 "$bin/unit_test_device_kernels"; }
memory_checker() { # a tenth of the lengths: it is slow
    TRIREME_TEST_QUICK=1 TRIREME_TEST_DEVICE=0 compute-sanitizer --error-exitcode 9 "$bin/unit_test_device_kernels"
}

export -f doctor kernels memory_checker
export bin command

stage doctor 30 doctor
if [ -z "$dry" ] && ! grep -q '^  device 0 ' "$log/doctor"; then
    failed=$((failed + 1))
    echo "FAILED: there is no CUDA device"
fi
if has_kernels; then
    stage kernels 110 kernels
    if [ -z "$dry" ] && command -v compute-sanitizer >/dev/null; then stage memory_checker 60 memory_checker; fi
fi
stage work 60 "$bin/gpu_work" check
stage collectives 100 "$bin/gpu_collectives"
stage times 60 "$bin/gpu_work" times

# told STAGE NAME: the text of a line "NAME: TEXT" of a stage. Times of a dry run are those of no device.
told() {
    local text
    text=$(sed -nE "s/^$2: (.*)$/\1/p" "$log/$1" 2>/dev/null | head -n 1)
    if [ -n "$dry" ]; then echo "not measured: a dry run"; else echo "${text:-not measured}"; fi
}
result() { # STAGE: of the checks, which a dry run has, too
    local text
    if [ ! -e "$log/$1" ]; then echo "not measured"; return; fi
    text=$(sed -nE 's/^=+ ERROR SUMMARY: (.*)$/\1/p; s/^(.*0 bits differ.*)$/\1/p' "$log/$1" | head -n 1)
    echo "${dry:+dry run: }${text:-FAILED}"
}
row() { printf '| %-46s | %-58s | %s |\n' "$@"; }

echo
row "stage" "found" "bar"
row "---" "---" "---"
row "copy on the device, read and written" "$(told times 'copy on the device')" "about 4300 GB/s on an H200"
row "copy from the host, to the host" "$(told times 'copy from the host'), $(told times 'copy to the host')" "-"
row "kernels against the host's loops" "$(result kernels)" "0 bits differ"
row "memory checker over the kernels" "$(result memory_checker)" "0 errors"
row "copies, fills, streams, reductions" "$(result work)" "0 bits differ"
row "collectives of ranks on the device" "$(told collectives collectives)" "right"
row "digits: CPU = GPU, all strategies" "not measured" "equal hashes"
row "2 ranks on the device: 256 MiB" "$(told collectives 'all-reduce of 268435456 bytes, 2 ranks on the device')" "85 % of copy / 2n"
row "4 ranks on the device: 256 MiB" "$(told collectives 'all-reduce of 268435456 bytes, 4 ranks on the device')" "85 % of copy / 2n"
row "2 ranks on the device: 8 bytes" "$(told collectives 'all-reduce of 8 bytes, 2 ranks on the device')" "20 us"
row "4 ranks on the device: 8 bytes" "$(told collectives 'all-reduce of 8 bytes, 4 ranks on the device')" "20 us"
row "a rank that is killed" "$(told collectives 'a rank that is killed')" "named within 250 ms"
row "NCCL: 1 rank; 2 processes; kill one" "not measured: no stage has it yet" "5 us a call; 2 s"
row "AdamW, f32" "$(told times 'AdamW, f32, 67108864 elements')" "90 % of a copy"
row "AdamW, bf16 with masters; f64; beside PyTorch" "not measured" "85, 60 % of a copy; 1.0 x"
row "ordered sum" "$(told times 'ordered sum of 4 sources, f32')" "90 % of a copy"
row "casts; int8; top-k; norm" "not measured" "90; 80; 50; 60 % of a copy"
row "step of 1 G, ZeRO-1, clipping" "not measured" "90 % of its kernels"
row "offload both ways, 500 M" "not measured" "85 % of the slower part"
row "GPT example: overlap; init, abort times" "not measured" "80 % of exchange hidden"
echo
echo "$passed passed, $failed failed, 0 skipped; $SECONDS s"
[ "$failed" -eq 0 ]
