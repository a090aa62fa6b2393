#!/usr/bin/env bash
# Runs a command on a machine that has nothing yet: `tests/bare/run.sh [--keep] COMMAND...`.
# Makes a bare Debian 12 below build/bare and a clean clone of HEAD in it, and runs COMMAND there as root, with mounts and
# processes of its own. Each run begins without what the one before installed; with --keep it begins with that.
# Status: that of COMMAND, or 77 and a line that says why, where no bare system can be made. What the settings of this
# machine's apt say about package hosts holds there, too.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$root/build/bare
suite=bookworm

skip() { echo "skipped: $*"; exit 77; }

keep=
if [ "${1-}" = --keep ]; then keep=1; shift; fi
[ $# -ge 1 ] || { echo "usage: tests/bare/run.sh [--keep] COMMAND..."; exit 2; }
[ "$(id -u)" -eq 0 ] || skip "a bare system needs root"
unshare --mount --pid --fork -- true 2>/dev/null || skip "a bare system needs mounts and processes of its own, and unshare gets none"
mkdir -p "$folder"
exec 9>"$folder/lock"
flock -n 9 || { echo "another tests/bare/run.sh uses $folder"; exit 2; }

# have PROGRAM: whether the package of that name is here, or could be installed.
have() {
    command -v "$1" >/dev/null ||
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1
}

# The address that this machine's apt takes Debian's packages from.
package_host() {
    local files
    files=$(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
    # shellcheck disable=SC2086
    [ -z "$files" ] || sed -nE 's/^(URIs:|deb( +\[[^]]*\])?) +(https?:[^ ]+\/debian)\/?( .*)?$/\3/p' $files | head -n 1
}

make_base() {
    local host
    host=$(package_host)
    [ -n "$host" ] || skip "apt names no Debian mirror from which debootstrap could make a bare system"
    have debootstrap || skip "a bare system needs debootstrap, which apt does not give"
    rm -rf "$folder/base" "$folder/base.new"
    echo "making a bare Debian 12 in $folder/base: about a minute"
    # Not as base before it is whole.
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder/base.new" "$host" >"$folder/base.log" 2>&1 ||
        { tail -n 3 "$folder/base.log"; skip "debootstrap made no bare system (see $folder/base.log)"; }
    cp -a /etc/apt/apt.conf.d/. "$folder/base.new/etc/apt/apt.conf.d/"
    if grep -q 'VERSION_CODENAME=bookworm' /etc/os-release && ls /etc/apt/sources.list.d/debian.sources >/dev/null 2>&1; then
        cp -a /etc/apt/sources.list.d/debian.sources "$folder/base.new/etc/apt/sources.list.d/"
        : >"$folder/base.new/etc/apt/sources.list"
    fi
    mv "$folder/base.new" "$folder/base"
}

have git || skip "a clean clone needs git, which apt does not give"
[ -e "$folder/base/etc/debian_version" ] || make_base
if [ -z "$keep" ] || [ ! -e "$folder/system/etc/debian_version" ]; then
    rm -rf --one-file-system "$folder/system"
    cp -a "$folder/base" "$folder/system"
fi
cp -L /etc/resolv.conf /etc/hosts "$folder/system/etc/" 2>/dev/null || true
rm -rf --one-file-system "$folder/system/src"
git clone -q --no-local "$root" "$folder/system/src"

# All that the command starts ends with it: the shell below is the first process of its own process namespace.
exec unshare --mount --propagation private --pid --fork --kill-child -- bash -c '
    set -e
    system=$1
    shift
    # A mount of its own, or nobody there could make namespaces of mounts.
    mount --bind "$system" "$system"
    mount -t proc proc "$system/proc"
    mount -t sysfs -o ro sysfs "$system/sys" 2>/dev/null || true
    mount --rbind /dev "$system/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$system/dev/shm"
    mount -t tmpfs -o mode=1777 tmpfs "$system/tmp"
    proxies=()
    for name in http_proxy https_proxy no_proxy; do [ -z "${!name-}" ] || proxies+=("$name=${!name}"); done
    # Not as the first process of the namespace, which every orphan gets for a parent.
    status=0
    chroot "$system" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        LANG=C.UTF-8 ${proxies[@]+"${proxies[@]}"} bash -c "cd /src && $*" 9>&- || status=$?
    exit "$status"
' bare "$folder/system" "$@"
