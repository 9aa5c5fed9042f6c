#!/usr/bin/env bash
# A pool in stripes over four files under load: one is filled with garbage, the load goes on and what
# is there is read; the server is killed; then the file is away, and the pool goes on without it.
. "$(dirname "$0")/lib.sh"
begin_members raid5
MIB=$(by_scale 128 2048)
FILES=$(by_scale 60 2000)

# Writes files of 1 to 400 KiB, some of them synced one by one, and notes their sums.
write_part() {
    mkdir "$DIR/$1"
    for ((n = 0; n < FILES; n++)); do
        head -c $(((n * 37 % 400 + 1) * 1024)) /dev/urandom >"$DIR/$1/$n"
        if ((n % 10 == 0)); then sync "$DIR/$1/$n"; fi
    done
    (cd "$DIR/$1" && sha256sum -- * >"$WORK/$1.sums")
}
verify() {
    local part
    for part in "$DIR"/*/; do
        part=$(basename "$part")
        (cd "$DIR/$part" && sha256sum --quiet -c "$WORK/$part.sums") || fail "$part is another, $1"
    done
}

"$HOLDFAST" create --group "raid5:$WORK/d0.hf,$WORK/d1.hf" --size "${MIB}M" >"$WORK/refused" 2>&1 \
    && fail "a pool in stripes on two devices"
grep -q "3 to 32 devices" "$WORK/refused" || fail "the refusal does not say how many"
[ ! -e "$WORK/d1.hf" ] || fail "a refused creation leaves a file"
group=raid5:$WORK/d0.hf,$WORK/d1.hf,$WORK/d2.hf,$WORK/d3.hf
"$HOLDFAST" create --group "$group" --size "${MIB}M" >/dev/null
mount_pool
DIR=$MOUNT/work
mkdir "$DIR"
write_part before
cycle_pool

# Nothing of it is in memory: it is read from the files.
write_part during &
load=$!
dd if=/dev/urandom of="$WORK/d2.hf" bs=1M count="$MIB" conv=notrunc status=none
wait "$load" || fail "the load with one device full of garbage"
verify "with one device full of garbage"
sync "$DIR"/*/*
kill_server

mv "$WORK/d2.hf" "$WORK/elsewhere/"
mount_pool
"$HOLDFAST" status "$MOUNT" | grep -q degraded || fail "status does not say that it is degraded"
verify "killed, and without that device"
write_part after
verify "degraded"
unmount_pool
check_pool

# By another of its devices, and with two of them away.
POOL=$WORK/d3.hf
mount_pool
verify "degraded, mounted again by another device"

# A spare comes, as an old device of another pool; files are written meanwhile, and the server is killed.
head -c "${MIB}M" /dev/urandom >"$WORK/d4.hf"
scrub_pool "with one device away"
grep -q "because of missing devices: .*d2.hf (slot 2)" "$WORK/scrub.log" \
    || fail "the scrub does not say what it could not compare: $(cat "$WORK/scrub.log")"
"$HOLDFAST" device replace "$POOL" 2 "$WORK/d4.hf" --force >/dev/null || fail "a spare is refused"
write_part joining
sync "$DIR"/*/*
kill_server
mount_pool
verify "killed in the middle of the rebuild"
wait_online d4.hf
verify "rebuilt"
scrub_is_clean "after the rebuild"
cycle_pool
for ((n = 50; n < 90; n++)); do
    printf 'rot' | dd of="$WORK/d4.hf" bs=1 seek=$((n * 1048576 + 4096 * n)) conv=notrunc status=none
done
scrub_pool "of rot"
scrub_is_clean "twice"
cd /
unmount_pool

# What was rebuilt has all: another is away. Then two are.
mv "$WORK/d1.hf" "$WORK/elsewhere/"
mount_pool
verify "rebuilt, and without another device"
cd /
unmount_pool
mv "$WORK/d0.hf" "$WORK/elsewhere/"
"$HOLDFAST" mount "$POOL" "$MOUNT" --daemon >"$WORK/refused" 2>&1 && fail "two are away"
grep -q "can lose one device" "$WORK/refused" || fail "refused: $(cat "$WORK/refused")"
grep -q "d0.hf" "$WORK/refused" || fail "it does not name one that is away"
mv "$WORK/elsewhere/d0.hf" "$WORK/"
check_pool
say "PASSED: $((FILES * 4)) files, a device of four filled with garbage, lost and replaced"
