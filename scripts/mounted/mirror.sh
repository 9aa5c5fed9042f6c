#!/usr/bin/env bash
# A mirror of two files under load: one is torn away and filled with garbage, the load goes on, a
# new device takes its place, the server is killed in the middle of the copy, and in the end the new
# device alone has everything.
. "$(dirname "$0")/lib.sh"
is_ours || { NAME=mirror; skip "the test makes its own pool"; }
NAME=mirror
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-mirror.XXXXXX")}
mkdir -p "$WORK"
trap clean_up EXIT
[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "there is no /dev/fuse that may be opened"
find_program
MOUNT=$WORK/mnt
export HOLDFAST_RUN_DIR=$WORK/run
mkdir -p "$MOUNT" "$WORK/elsewhere"
SIZE=$(by_scale 256M 4G)
FILES=$(by_scale 60 2000)
POOL=$WORK/d0.hf

holdfast() { "$HOLDFAST" "$@"; }
state_of() { holdfast device list "$POOL" | grep -F "$1" | awk '{ print $2 }'; }
is_state() { [ "$(state_of "$1")" = "$2" ] || fail "$1 is $(state_of "$1"), not $2"; }

holdfast create --group "mirror:$WORK/d0.hf,$WORK/d1.hf" --size "$SIZE" >/dev/null
mount_pool
DIR=$MOUNT/work
mkdir "$DIR"
holdfast mount "$WORK/d1.hf" "$WORK/elsewhere" --daemon >/dev/null 2>&1 \
    && fail "the pool is mounted twice, by its other device"
holdfast status "$WORK/d1.hf" >/dev/null || fail "the other device does not name the pool"

write() { head -c 200000 /dev/urandom >"$DIR/$1" && sync "$DIR/$1"; }
note() { (cd "$DIR" && sha256sum -- * >"$WORK/sums"); }
verify() { (cd "$1" && sha256sum --quiet -c "$WORK/sums") || fail "$2: content is another"; }

for ((n = 0; n < FILES; n++)); do
    write "file$n"
    if [ "$n" -eq $((FILES / 3)) ]; then
        # Torn away: garbage over all of it, and then shorter than the pool.
        dd if=/dev/urandom of="$WORK/d1.hf" bs=1M count=32 conv=notrunc status=none
        truncate -s 16M "$WORK/d1.hf"
    fi
done
note
verify "$DIR" "with one device torn away"
is_state d1.hf failed
holdfast status "$MOUNT" | grep -q degraded || fail "status does not say that it is degraded"

# Closed and opened again without it.
unmount_pool
holdfast check "$POOL" >/dev/null || fail "check of what is left"
mount_pool
verify "$DIR" "degraded, opened again"

holdfast device replace "$POOL" 1 "$WORK/d2.hf" >/dev/null
for ((n = 0; n < 5; n++)); do write "during$n"; done
note
kill_server
mount_pool
verify "$DIR" "killed in the middle of the copy"
for ((n = 0; n < 600; n++)); do
    [ "$(state_of d2.hf)" = online ] && break
    sleep 0.2
done
is_state d2.hf online
for ((n = 0; n < 5; n++)); do write "after$n"; done
note
unmount_pool
check_pool

# The new device alone has all, under its own name.
mv "$WORK/d0.hf" "$WORK/elsewhere/"
POOL=$WORK/d2.hf
mount_pool
verify "$DIR" "the new device alone"
unmount_pool
check_pool

# The other half was opened by nobody, and is left behind: it is named, and nothing is changed.
mv "$WORK/elsewhere/d0.hf" "$WORK/"
mount_pool
is_state d0.hf missing
verify "$DIR" "with a device that missed writes"
holdfast device replace "$POOL" 0 "$WORK/d3.hf" --wait >/dev/null
is_state d3.hf online
"$HOLDFAST" scrub "$POOL" --wait | grep -q " 0 pages and blocks\|the same" || fail "scrub is not clean"

# Rot on one device, of which the other knows better: a scrub writes it again.
for ((n = 100; n < 120; n++)); do
    printf 'rot' | dd of="$WORK/d3.hf" bs=1 seek=$((n * 1048576 + 4096 * n)) conv=notrunc status=none
done
"$HOLDFAST" scrub "$POOL" --wait >"$WORK/scrub.log" || { cat "$WORK/scrub.log" >&2; fail "scrub"; }
"$HOLDFAST" scrub "$POOL" --wait | grep -q " 0 pages and blocks\|the same" || fail "scrub twice"
cd /
unmount_pool
check_pool
say "PASSED: $FILES files, a device torn away, two replaced"
