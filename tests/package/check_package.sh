#!/usr/bin/env bash
# Installs the build, moves the tree, and builds a consumer against it by CMake and by pkg-config.
# usage: check_package.sh BUILD_FOLDER
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/moved" # relocatable, or what follows fails
library=$(dirname "$(find "$work/moved" -name 'libtrireme.so.1' | head -n 1)")

# Where nothing but Ninja builds, CMake does not find it by itself.
! command -v ninja >/dev/null || export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}
cmake -S "$here" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$work/moved" >"$work/log" &&
    cmake --build "$work/by-cmake" >>"$work/log" || { cat "$work/log"; exit 1; }
test "$("$work/by-cmake/consumer")" = 42

export PKG_CONFIG_PATH=$library/pkgconfig
# shellcheck disable=SC2046 # flags are words
cc -std=c11 "$here/consumer.c" -o "$work/by-pkg-config" $(pkg-config --cflags --libs trireme) \
    -Wl,-rpath,"$(pkg-config --variable=libdir trireme)"
test "$(env -u LD_LIBRARY_PATH "$work/by-pkg-config")" = 42

# The installed command finds the installed library, and only headers of the ABI are installed.
"$work/moved/bin/trireme" --version | grep -q '1\.0\.0'
test -z "$(find "$work/moved/include" -type f ! -path '*/include/trireme/*.h')"
# The library and its plugin for CUDA need the C and C++ runtime and nothing else.
for file in libtrireme.so.1 libtrireme_cuda.so; do
    needed=$(readelf -d "$library/$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
    unexpected=$(grep -vE '^(libstdc\+\+|libgcc_s|libm|libc|ld-linux-x86-64)\.so' <<<"$needed" || true)
    test -z "$unexpected" || { echo "$file needs $unexpected"; exit 1; }
done
readelf -d "$library/libtrireme.so.1" | grep -q NODELETE
echo "package: found by CMake and by pkg-config after a move; needs only" $needed
