# Sourced by examples/quickstart.sh and tests/run.sh: finds what they need, and installs what is
# missing by apt where that is possible, saying so.

say() { printf '%s\n' "$*"; }

# Debian's own Python, for which its numpy and PyTorch are built.
find_python() { python=$([ -x /usr/bin/python3 ] && echo /usr/bin/python3 || command -v python3 || true); }
find_python

# requires PACKAGE...: true if every Debian package is there, or could be installed.
requires() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "missing: ${missing[*]} (root could install them: apt-get install ${missing[*]})"
        return 1
    fi
    say "installing: ${missing[*]}"
    if [ -z "${apt_lists_are_fresh-}" ]; then
        apt-get update -qq || true
        apt_lists_are_fresh=1
    fi
    DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || return 1
    find_python
}

# requires_build_tools PACKAGE...: what everything is built with, and these. g++, cmake and ninja from other sources than
# apt do as well.
requires_build_tools() {
    local packages=(libuv1-dev libcli11-dev libxxhash-dev liburing-dev pkg-config "$@")
    command -v g++ >/dev/null || packages+=(g++)
    command -v cmake >/dev/null || packages+=(cmake)
    command -v ninja >/dev/null || packages+=(ninja-build)
    requires "${packages[@]}"
}

# configure_and_build PRESET FOLDER [CMAKE OPTION...]: builds all, or the targets named in build_targets.
configure_and_build() {
    local preset=$1 folder=$2
    shift 2
    if command -v ccache >/dev/null; then
        set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"
    elif [ ! -e "$folder/CMakeCache.txt" ]; then # nothing is there to keep: a folder of sources at once
        set -- -DCMAKE_UNITY_BUILD=ON "$@"
    fi
    (cd "$root" && cmake --preset "$preset" -B "$folder" "$@" >"$folder.configure.log" 2>&1) ||
        { cat "$folder.configure.log"; return 1; }
    # shellcheck disable=SC2086 # targets are words
    cmake --build "$folder" ${build_targets:+--target $build_targets} >"$folder.build.log" 2>&1 || { tail -n 60 "$folder.build.log"; return 1; }
}
