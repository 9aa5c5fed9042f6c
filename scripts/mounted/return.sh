#!/usr/bin/env bash
# A pool in stripes over four files under load: one is failed by hand and comes back with what it
# missed; the server is killed, another is away for a life and comes back by itself; a spare takes
# the place of a third. Nothing is lost, and a scrub finds nothing.
. "$(dirname "$0")/lib.sh"
begin_members return
MIB=$(by_scale 256 2048)
FILES=$(by_scale 40 1500)

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
# Prints how many bytes were written to a device since it has its state.
written_to() {
    "$HOLDFAST" device list "$POOL" --json | grep -F "$1" | sed -n 's/.*"written_bytes":\([0-9]*\).*/\1/p'
}

"$HOLDFAST" create --group "raid5:$WORK/d0.hf,$WORK/d1.hf,$WORK/d2.hf,$WORK/d3.hf" --size "${MIB}M" >/dev/null
mount_pool
DIR=$MOUNT/work
mkdir "$DIR"
for part in 1 2 3; do write_part "before$part"; done

# Failed under load, and back under load.
write_part during &
load=$!
"$HOLDFAST" device fail "$POOL" "$WORK/d1.hf" >/dev/null || fail "a device cannot be failed"
wait "$load" || fail "the load with one device away"
is_state d1.hf failed
sync "$DIR"/during/*
"$HOLDFAST" device list "$POOL" | grep d1.hf | grep -q "changed while it is away" \
    || fail "device list does not say what changed"
write_part beside &
load=$!
"$HOLDFAST" device online "$POOL" "$WORK/d1.hf" --wait >/dev/null || fail "it cannot come back"
wait "$load" || fail "the load while it comes back"
is_state d1.hf online
written=$(written_to d1.hf)
[ -n "$written" ] && [ "$written" -lt $((MIB * 1048576 * 3 / 4)) ] \
    || fail "$written bytes were written to a device of $MIB MiB that came back"
verify "after a return"
scrub_is_clean "after a return"
"$HOLDFAST" device online "$POOL" "$WORK/d1.hf" >"$WORK/refused" 2>&1 && fail "what is online comes back"
grep -q "nothing to bring back" "$WORK/refused" || fail "refused: $(cat "$WORK/refused")"

# Killed; away for a life; killed again in the middle of its return.
sync "$DIR"/*/*
kill_server
mv "$WORK/d2.hf" "$WORK/elsewhere/"
mount_pool
is_state d2.hf missing
write_part degraded
sync "$DIR"/degraded/*
kill_server
mv "$WORK/elsewhere/d2.hf" "$WORK/"
mount_pool
verify "while a device comes back by itself"
kill_server
mount_pool
wait_online d2.hf
verify "after it came back by itself"
scrub_is_clean "after it came back by itself"

# A spare takes the place of one that fails.
"$HOLDFAST" device add "$POOL" "$WORK/d0.hf" --spare --force >"$WORK/refused" 2>&1 && fail "a member is a spare"
head -c 1M /dev/urandom >"$WORK/s0.hf"
truncate -s "${MIB}M" "$WORK/s0.hf"
"$HOLDFAST" device add "$POOL" "$WORK/s0.hf" --spare >"$WORK/refused" 2>&1 && fail "garbage is a spare"
grep -q "force" "$WORK/refused" || fail "refused: $(cat "$WORK/refused")"
"$HOLDFAST" device add "$POOL" "$WORK/s0.hf" --spare --force >/dev/null || fail "a spare is refused"
cycle_pool
"$HOLDFAST" status "$MOUNT" | grep -q "s0.hf *spare" || fail "status does not show the spare"
write_part spare &
load=$!
"$HOLDFAST" device fail "$POOL" "$WORK/d3.hf" >/dev/null
wait "$load" || fail "the load while a spare takes over"
wait_online s0.hf
verify "on a spare"
scrub_is_clean "on a spare"
cd /
unmount_pool
check_pool

say "PASSED: $((FILES * 7)) files, $written bytes written to a device that came back"
