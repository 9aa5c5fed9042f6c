#!/usr/bin/env bash
# A mount that is to talk by io_uring and can't: it serves by /dev/fuse and says why. A processor
# that goes and comes back under load costs nothing.
#
# What a case needs to be missing is hidden in a mount namespace of this test's own. Only
# kernel.io_uring_disabled is the machine's; it is put back.
. "$(dirname "$0")/lib.sh"
NAME=fallback
is_ours || skip "it is about mounts"
[ "$(id -u)" = 0 ] || skip "hiding parts of /sys needs root"
need unshare mount
if [ "${1:-}" != inside ]; then
    exec unshare --mount --propagation private "$0" inside
fi

SWITCH=/sys/module/fuse/parameters/enable_uring
POSSIBLE=/sys/devices/system/cpu/possible
FORBIDDEN=/proc/sys/kernel/io_uring_disabled
PROCESSOR=/sys/devices/system/cpu/cpu1/online
[ -e "$SWITCH" ] || skip "this kernel has no FUSE over io_uring"

allowed=$(cat "$FORBIDDEN" 2>/dev/null || true)
put_back() {
    [ -z "$allowed" ] || echo "$allowed" >"$FORBIDDEN" 2>/dev/null || true
    [ ! -w "$PROCESSOR" ] || echo 1 >"$PROCESSOR" 2>/dev/null || true
    clean_up
}

POOL_SIZE=1G
MOUNT_FLAGS="--transport uring"
begin fallback
trap put_back EXIT
unmount_pool

says() { "$HOLDFAST" status "$MOUNT" | sed -n 's/^ *requests: by //p'; }
work() {
    local number
    for number in $(seq 1 50); do
        head -c 20000 /dev/urandom >"$DIR/$1-$number"
        cmp -s "$DIR/$1-$number" "$DIR/$1-$number" || return 1
        rm "$DIR/$1-$number"
    done
}

# falls_back CASE WORDS: the mount serves by /dev/fuse, and its reason has the words.
falls_back() {
    local said
    mount_pool
    said=$(says)
    case $said in
        "/dev/fuse"*"$2"*) ;;
        *) fail "$1: it says \"$said\"" ;;
    esac
    work "$1" || fail "$1: the mount does not serve"
    unmount_pool
    check_pool
    say "$1: $said"
}

printf '0-511\n' >"$WORK/possible"
mount --bind "$WORK/possible" "$POSSIBLE"
falls_back processors "512 possible processors"
umount "$POSSIBLE"

printf 'N\n' >"$WORK/switch"
mount --bind "$WORK/switch" "$SWITCH"
mount -o remount,ro,bind "$SWITCH"
falls_back switch "is off, and turning it on failed"
umount "$SWITCH"

mkdir "$WORK/nothing"
mount --bind "$WORK/nothing" "$(dirname "$SWITCH")"
falls_back kernel "no FUSE over io_uring"
umount "$(dirname "$SWITCH")"

if [ -n "$allowed" ] && echo 2 >"$FORBIDDEN" 2>/dev/null; then
    falls_back forbidden "io_uring"
    echo "$allowed" >"$FORBIDDEN"
else
    say "forbidden: not tried, $FORBIDDEN can't be set"
fi

mount_pool
case $(says) in
    io_uring*) ;;
    *) fail "with nothing hidden it says \"$(says)\"" ;;
esac
if [ -w "$PROCESSOR" ] && echo 0 >"$PROCESSOR" 2>/dev/null; then
    echo 1 >"$PROCESSOR"
    pids=()
    for id in 1 2 3; do
        work "client-$id" &
        pids+=($!)
    done
    for _ in 1 2 3; do
        echo 0 >"$PROCESSOR"
        sleep 0.2
        echo 1 >"$PROCESSOR"
        sleep 0.1
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "a client failed when a processor went"
    done
    say "processor 1 went and came back three times under load"
else
    say "no processor can be taken away here"
fi
finish
