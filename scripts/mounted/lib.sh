# Common to the tests on a mount: a pool made, mounted, killed, mounted again, checked, unmounted.
#
# A test sources this, calls `begin NAME`, works in $DIR, and calls `finish`. Variables:
#
#   TARGET_DIR    test this directory, whatever its file system; nothing is mounted or killed
#   HOLDFAST      the program [target/release/holdfast, else target/debug/holdfast]
#   WORK          a directory for the pool and the test's own notes [a new one in TMPDIR]
#   POOL_SIZE     [16G]         MOUNT_FLAGS   more flags of `holdfast mount`
#   POOL_ON       file or loop: what the pool is on [file]
#   SCALE         small (CI) or full (a soak): the default of each test's own variables
#
# Works in bash, as root or as a user who may mount.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SCALE=${SCALE:-small}
POOL_SIZE=${POOL_SIZE:-16G}
POOL_ON=${POOL_ON:-file}
MOUNT_FLAGS=${MOUNT_FLAGS:-}
NAME=
LOOP=

say() { printf '%s: %s\n' "$NAME" "$*"; }
fail() { printf '%s: FAILED: %s\n' "$NAME" "$*" >&2; exit 1; }

# Ends the test as skipped, loudly. ./test shows it in its table.
skip() {
    printf '\n*** SKIPPED: %s: %s ***\n\n' "$NAME" "$*" >&2
    exit 77
}

# need TOOL...: skips the test where one is missing.
need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$tool is not installed"
    done
}

# by_scale SMALL FULL: prints the one that SCALE asks for.
by_scale() { if [ "$SCALE" = full ]; then echo "$2"; else echo "$1"; fi; }

is_ours() { [ -z "${TARGET_DIR:-}" ]; }

begin() {
    NAME=$1
    WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-$NAME.XXXXXX")}
    mkdir -p "$WORK"
    trap clean_up EXIT
    if is_ours; then
        [ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "there is no /dev/fuse that may be opened"
        find_program
        POOL=$WORK/pool.hf MOUNT=$WORK/mnt
        export HOLDFAST_RUN_DIR=$WORK/run
        mkdir -p "$MOUNT"
        if [ "$POOL_ON" = loop ]; then
            truncate -s "$POOL_SIZE" "$POOL"
            LOOP=$(losetup --find --show "$POOL") || skip "there is no loop device"
            POOL=$LOOP
            "$HOLDFAST" create "$POOL" >/dev/null
        else
            "$HOLDFAST" create "$POOL" --size "$POOL_SIZE" >/dev/null
        fi
        mount_pool
        DIR=$MOUNT/$NAME
    else
        DIR=$TARGET_DIR/holdfast-$NAME.$$
    fi
    mkdir "$DIR"
    say "in $DIR, scale $SCALE"
}

# begin_members NAME: as `begin`, for a test that makes a pool of several files of its own in $WORK.
begin_members() {
    NAME=$1
    is_ours || skip "the test makes its own pool"
    WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-$NAME.XXXXXX")}
    mkdir -p "$WORK"
    trap clean_up EXIT
    [ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "there is no /dev/fuse that may be opened"
    find_program
    MOUNT=$WORK/mnt POOL=$WORK/d0.hf
    export HOLDFAST_RUN_DIR=$WORK/run
    mkdir -p "$MOUNT" "$WORK/elsewhere"
}

# Prints the state of a device of $POOL, named by a part of its path.
state_of() { "$HOLDFAST" device list "$POOL" | grep -F "$1" | awk '{ print $4 }'; }
is_state() { [ "$(state_of "$1")" = "$2" ] || fail "$1 is $(state_of "$1"), not $2"; }

# wait_online DEVICE: waits until a job has made it whole.
wait_online() {
    local n
    for ((n = 0; n < 600; n++)); do
        [ "$(state_of "$1")" = online ] && return
        sleep 0.2
    done
    fail "$1 is $(state_of "$1"), not online: $("$HOLDFAST" job list "$POOL")"
}

scrub_pool() {
    "$HOLDFAST" scrub "$POOL" --wait >"$WORK/scrub.log" || { cat "$WORK/scrub.log" >&2; fail "scrub $1"; }
}
scrub_is_clean() {
    scrub_pool "$1"
    grep -q " 0 pages and blocks\|the same" "$WORK/scrub.log" \
        || fail "scrub is not clean, $1: $(cat "$WORK/scrub.log")"
}

find_program() {
    local candidate
    for candidate in "${HOLDFAST:-}" "$ROOT/target/release/holdfast" "$ROOT/target/debug/holdfast"; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            HOLDFAST=$candidate
            return
        fi
    done
    fail "no holdfast program: run cargo build --release, or set HOLDFAST"
}

mount_pool() {
    # shellcheck disable=SC2086  # MOUNT_FLAGS is a list.
    timeout 120 "$HOLDFAST" mount "$POOL" "$MOUNT" --daemon $MOUNT_FLAGS >/dev/null \
        || fail "the pool cannot be mounted"
}

server_pid() {
    "$HOLDFAST" status "$MOUNT" --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p'
}

# Prints the most memory that the server has had so far.
server_memory() {
    if is_ours; then sed -n 's/^VmHWM:\s*//p' "/proc/$(server_pid)/status"; else echo unknown; fi
}

is_running() {
    # A killed daemon may stay as a zombie where nobody reaps, and its first thread is one before
    # the others have ended.
    [ -e "/proc/$1/stat" ] || return 1
    ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null || [ "$(ls "/proc/$1/task" 2>/dev/null | wc -l)" -gt 1 ]
}

# Kills the server as power does, and waits until it is gone. Nothing where the target is not ours.
kill_server() {
    is_ours || return 0
    local pid
    pid=$(server_pid)
    [ -n "$pid" ] || fail "the server does not say who it is"
    kill -9 "$pid"
    while is_running "$pid"; do sleep 0.02; done
    # The mount point must answer, if only with an error.
    local code=0
    timeout 10 stat "$MOUNT" >/dev/null 2>&1 || code=$?
    [ "$code" -ne 124 ] || fail "the mount point hangs after kill -9"
}

# Mounts the pool again, after kill_server or after a clean unmount.
remount_pool() {
    if is_ours; then mount_pool; else sync; fi
}

unmount_pool() {
    is_ours || return 0
    timeout 300 "$HOLDFAST" unmount "$MOUNT" >/dev/null || fail "the mount cannot be unmounted"
}

# Unmounts, checks and mounts again: what was read from a cache must come from the pool.
cycle_pool() {
    if is_ours; then
        unmount_pool
        check_pool
        mount_pool
    else
        sync
    fi
}

check_pool() {
    is_ours || return 0
    local code=0
    "$HOLDFAST" check "$POOL" >"$WORK/check.log" 2>&1 || code=$?
    if [ "$code" -ne 0 ]; then
        cat "$WORK/check.log" >&2
        fail "holdfast check exits with $code"
    fi
}

# What every test ends with.
finish() {
    cd /
    rm -rf "$DIR"
    if is_ours; then
        unmount_pool
        check_pool
    fi
    say "PASSED${*:+: $*}"
}

clean_up() {
    local code=$?
    cd /
    if is_ours && [ -n "${MOUNT:-}" ]; then
        "$HOLDFAST" unmount "$MOUNT" --lazy >/dev/null 2>&1 || umount -l "$MOUNT" 2>/dev/null || true
    fi
    [ -z "$LOOP" ] || losetup --detach "$LOOP" || true
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && [ -n "${KEEP:-}" ]; then
        say "kept $WORK"
        return
    fi
    [ -z "${DIR:-}" ] || is_ours || rm -rf "$DIR"
    [ -z "${WORK:-}" ] || rm -rf "$WORK"
}
