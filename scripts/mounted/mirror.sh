#!/usr/bin/env bash
# A mirror of two files under load: one is torn away and filled with garbage, the load goes on, a
# new device takes its place, the server is killed in the middle of the copy, and in the end the new
# device alone has everything.
. "$(dirname "$0")/lib.sh"
begin_members mirror
SIZE=$(by_scale 256M 4G)
FILES=$(by_scale 60 2000)

holdfast() { "$HOLDFAST" "$@"; }

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
wait_online d2.hf
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

# The other half was opened by nobody: it comes back by itself, and gets what it missed.
mv "$WORK/elsewhere/d0.hf" "$WORK/"
mount_pool
verify "$DIR" "with a device that missed writes"
wait_online d0.hf
scrub_is_clean "after a device came back"
holdfast device replace "$POOL" 0 "$WORK/d3.hf" --wait >/dev/null
is_state d3.hf online
scrub_is_clean "after a replacement"

# Rot on one device, of which the other knows better: a scrub writes it again.
for ((n = 100; n < 120; n++)); do
    printf 'rot' | dd of="$WORK/d3.hf" bs=1 seek=$((n * 1048576 + 4096 * n)) conv=notrunc status=none
done
scrub_pool "of rot"
scrub_is_clean "twice"
cd /
unmount_pool
check_pool
say "PASSED: $FILES files, a device torn away, two replaced"
