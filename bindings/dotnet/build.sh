#!/usr/bin/env bash
# Builds the binding, its tests and the digits example with Mono's compiler:
# `bindings/dotnet/build.sh [FOLDER [--no-tests]]`, by default into build/dotnet.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-$root/build/dotnet}
mkdir -p "$folder"

compile() { mcs -nologo -langversion:7.2 -unsafe -optimize -debug -warnaserror "$@"; }

compile -target:library -doc:"$folder/Trireme.xml" -nowarn:1573,1591 -out:"$folder/Trireme.dll" "$here"/src/*.cs "$here"/src/Abi/*.cs
cp "$here/src/Trireme.dll.config" "$folder/"
[ "${2-}" = --no-tests ] ||
    compile -r:"$folder/Trireme.dll" -out:"$folder/Trireme.Tests.exe" "$here"/tests/*.cs
compile -r:"$folder/Trireme.dll" -out:"$folder/Digits.exe" "$root"/examples/digits/*.cs
