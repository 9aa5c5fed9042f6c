#!/usr/bin/env bash
# Measures Holdfast beside ext4, XFS, btrfs and fuse2fs: each on a loop device of its own, all in
# files on one disk, all asked in turn. Whatever was made is taken away at the end, also on ^C.
#
#   scripts/bench-peers.sh [OPTIONS of holdfast-lab bench]
#   PEERS="ext4 xfs" scripts/bench-peers.sh --only names,durable --rounds 10 --out results
#
#   PEERS       [ext4 xfs btrfs fuse2fs]   which of them; `null` too: a server behind the transport of
#               Holdfast that does nothing, so the ceiling (cargo build --release -p benches)
#   PLACE       a directory on the disk to measure [a new one in TMPDIR, or in /var/tmp]
#   PEER_SIZE   [8G]   size of each (sparse); larger for larger scales
#   HOLDFAST    the program [target/release/holdfast]
#
# Needs root, for loop devices and mounts. The loop devices pass O_DIRECT on, so that no cache below
# the file system answers for the disk.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/setup.sh
. "$ROOT/scripts/setup.sh"

PEERS=${PEERS:-ext4 xfs btrfs fuse2fs}
PEER_SIZE=${PEER_SIZE:-8G}
HOLDFAST=${HOLDFAST:-$ROOT/target/release/holdfast}
NULL_SERVER=${NULL_SERVER:-$ROOT/target/release/null-server}
# How long a server may take to answer, or to end, in tenths of a second.
SERVER_WAIT_TENTHS=100

fail() { printf 'bench-peers: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "loop devices and mounts need root: sudo $0 $*"
[ -x "$HOLDFAST" ] || fail "no $HOLDFAST: run cargo build --release -p cli -p lab, or set HOLDFAST"
[ -x "${LAB:-$HOLDFAST-lab}" ] || fail "no ${LAB:-$HOLDFAST-lab}: run cargo build --release -p lab, or set LAB"

place=$(mktemp -d "${PLACE:-${TMPDIR:-/var/tmp}}/holdfast-peers.XXXXXX")
mounts=() loops=() against=() servers=() bench=

# Takes away what is there, the last first; nothing here may stop at a failure.
clean_up() {
    local code=$? at pid
    trap - EXIT
    # A second ^C must not leave half of it.
    trap '' INT TERM HUP
    set +e
    # It removes what it made before it ends.
    [ -z "$bench" ] || { kill -TERM "$bench" 2>/dev/null; wait "$bench"; }
    for ((at = ${#mounts[@]} - 1; at >= 0; at--)); do
        mountpoint -q "${mounts[$at]}" || continue
        umount "${mounts[$at]}" 2>/dev/null || { sleep 1; umount -l "${mounts[$at]}"; }
    done
    for pid in "${servers[@]}"; do
        for ((at = 0; at < SERVER_WAIT_TENTHS; at++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    for ((at = ${#loops[@]} - 1; at >= 0; at--)); do losetup -d "${loops[$at]}"; done
    rm -rf "$place"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# attach NAME: makes a sparse file and a loop device on it; the device is in $loop.
attach() {
    truncate -s "$PEER_SIZE" "$place/$1.img"
    loop=$(losetup --find --show --direct-io=on "$place/$1.img")
    loops+=("$loop")
}

# join NAME: the mount of NAME takes part.
join() {
    chmod 700 "$place/$1"
    against+=(--against "$1=$place/$1")
}

add_kernel_peer() {
    local name=$1
    shift
    mkdir "$place/$name"
    attach "$name"
    "$@" "$loop" >/dev/null || fail "mkfs of $name failed"
    mount -t "$name" "$loop" "$place/$name"
    mounts+=("$place/$name")
    join "$name"
}

add_fuse2fs() {
    mkdir "$place/fuse2fs"
    attach fuse2fs
    # No lazy tables: they would be written in the background of the others.
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
    # In the foreground, so that its process is known; in a group of its own, so that ^C reaches it
    # only when its mount goes.
    setsid fuse2fs "$loop" "$place/fuse2fs" -f -o fakeroot >"$place/fuse2fs.log" 2>&1 &
    servers+=("$!")
    mounts+=("$place/fuse2fs")
    local tenths=0
    until mountpoint -q "$place/fuse2fs"; do
        kill -0 "${servers[-1]}" 2>/dev/null || { cat "$place/fuse2fs.log" >&2; fail "fuse2fs ended"; }
        [ $((tenths += 1)) -le "$SERVER_WAIT_TENTHS" ] || fail "fuse2fs does not answer"
        sleep 0.1
    done
    join fuse2fs
    against+=(--server "fuse2fs=${servers[-1]}")
}

add_null() {
    mkdir "$place/null"
    setsid "$NULL_SERVER" "$place/null" >"$place/null.log" 2>&1 &
    servers+=("$!")
    mounts+=("$place/null")
    local tenths=0
    until mountpoint -q "$place/null"; do
        kill -0 "${servers[-1]}" 2>/dev/null || { cat "$place/null.log" >&2; fail "null-server ended"; }
        [ $((tenths += 1)) -le "$SERVER_WAIT_TENTHS" ] || fail "null-server does not answer"
        sleep 0.1
    done
    join null
    against+=(--server "null=${servers[-1]}")
}

for peer in $PEERS; do
    case $peer in
        ext4)
            install_missing mkfs.ext4=e2fsprogs
            add_kernel_peer ext4 mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 ;;
        xfs)
            install_missing mkfs.xfs=xfsprogs
            add_kernel_peer xfs mkfs.xfs -q ;;
        btrfs)
            install_missing mkfs.btrfs=btrfs-progs
            add_kernel_peer btrfs mkfs.btrfs -q ;;
        fuse2fs)
            install_missing mkfs.ext4=e2fsprogs fuse2fs=fuse2fs
            add_fuse2fs ;;
        null) add_null ;;
        *) fail "no peer is called $peer: ext4, xfs, btrfs, fuse2fs or null" ;;
    esac
done

mkdir "$place/pools"
code=0
# In the background, because bash answers a signal only when its foreground has ended.
HOLDFAST=$HOLDFAST "${LAB:-$HOLDFAST-lab}" bench --place "$place/pools" "${against[@]}" "$@" &
bench=$!
wait "$bench" || code=$?
bench=
exit "$code"
