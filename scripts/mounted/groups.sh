#!/usr/bin/env bash
# A pool of disk groups: data in stripes over three files, metadata on a mirror of two. A third is
# added under load, one is taken out under load, and the server is killed in the middle of that.
# Nothing is lost, no data lies where only metadata may, and a check finds nothing.
. "$(dirname "$0")/lib.sh"
begin_members groups
POOL=$WORK/m0.hf
MIB=$(by_scale 128 2048)
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
# Prints the line of disk group $1.
group_line() { "$HOLDFAST" group list "$POOL" | grep "^ *$1 "; }
# Prints the bytes that blocks of df have, of the kind $1: avail or size.
space() { df --output="$1" -B1 "$MOUNT" | tail -1 | tr -d ' '; }

refused() {
    local words=$1
    shift
    "$HOLDFAST" "$@" >"$WORK/refused" 2>&1 && fail "$* is not refused"
    grep -q -e "$words" "$WORK/refused" || fail "$*: $(cat "$WORK/refused")"
}
DATA="raid5:$WORK/d0.hf,$WORK/d1.hf,$WORK/d2.hf" META="mirror:$WORK/m0.hf,$WORK/m1.hf"
refused "=metadata" create --group "$DATA=data" --group "$META=journal" --size "${MIB}M"
refused "role data" create --group "$META=metadata,journal" --size "${MIB}M"
[ ! -e "$WORK/d0.hf" ] && [ ! -e "$WORK/m0.hf" ] || fail "a refusal leaves a file"
"$HOLDFAST" create --group "$DATA" --group "$META=metadata,journal" --size "${MIB}M" >/dev/null
check_pool
mount_pool
DIR=$MOUNT/work
mkdir "$DIR"
group_line 0 | grep -q "mirror .*metadata,journal" || fail "$("$HOLDFAST" group list "$POOL")"
group_line 1 | grep -q "raid5 .* data " || fail "$("$HOLDFAST" group list "$POOL")"
before=$(space avail)
[ "$before" -lt $((2 * MIB * 1048576)) ] || fail "df promises $before bytes of two times $MIB MiB"
for part in 1 2; do write_part "before$part"; done
refused "last that data may lie in" group remove "$POOL" 1

# One more under load.
write_part during &
load=$!
"$HOLDFAST" group add "$POOL" "single:$WORK/s0.hf" --size "${MIB}M" >/dev/null || fail "group add"
wait "$load" || fail "the load while a disk group is added"
[ "$(space avail)" -gt "$before" ] || fail "the room of a new disk group does not count"
write_part after
cycle_pool
group_line 2 | grep -q "single .*online" || fail "$("$HOLDFAST" group list "$POOL")"
verify "with three disk groups"

# One is taken out under load, and the server is killed meanwhile.
write_part beside &
load=$!
"$HOLDFAST" group remove "$POOL" 1 >/dev/null || fail "group remove"
wait "$load" || fail "the load while a disk group is taken out"
sync "$DIR"/beside/*
kill_server
mount_pool
verify "while a disk group is taken out"
write_part later
for ((n = 0; n < 600; n++)); do
    group_line 1 >/dev/null || break
    sleep 0.2
done
group_line 1 >/dev/null && fail "it does not end: $("$HOLDFAST" job list "$POOL")"
cycle_pool
verify "without the first for data"
cd /
unmount_pool
check_pool
# The devices that were taken out are blank: others may have them.
head -c 4096 "$WORK/d0.hf" | tr -d '\0' | grep -q . && fail "a device that was taken out has a label"

# A pool of one disk, made without stripes, becomes a mirror and gets a raid5, which then does
# without a device.
rm "$WORK"/*.hf
POOL=$WORK/one.hf
"$HOLDFAST" create "$POOL" --size "${MIB}M" >/dev/null
mount_pool
mkdir "$DIR"
write_part alone
before=$(space avail)
"$HOLDFAST" device add "$POOL" "$WORK/two.hf" --mirror "$POOL" --wait >/dev/null || fail "a mirror"
"$HOLDFAST" group add "$POOL" "$DATA" --size "${MIB}M" >/dev/null || fail "a raid5 comes"
[ "$(space avail)" -gt $((before + MIB * 1048576 * 3 / 2)) ] || fail "$(space avail) after $before"
group_line 1 | grep -q "raid5 .*data .*online" || fail "$("$HOLDFAST" group list "$POOL")"
write_part beside_one
cycle_pool
verify "with a raid5 beside"
cd /
unmount_pool
mv "$WORK/d1.hf" "$WORK/elsewhere/"
mount_pool
verify "with a raid5 that lacks a device"
cd /
unmount_pool
check_pool
say "PASSED: $((FILES * 8)) files"
