#!/usr/bin/env bash
# Direct I/O by mount option and by file: what the kernel keeps of files, and that they read and map
# as others do. fsx goes over a mount with -o direct_io, where it is installed.
. "$(dirname "$0")/lib.sh"
need fincore setfattr sha256sum
OPERATIONS=${DIRECT_OPERATIONS:-$(by_scale 3000 200000)}
FSX=$(command -v "$ROOT/target/tools/bin/fsx" || command -v fsx || true)
is_ours || skip "the test chooses its own mount options"
OTHER_FLAGS=$MOUNT_FLAGS
begin direct
cd "$DIR"

# Prints how many bytes of a file the kernel keeps.
kept() { fincore --bytes --noheadings --output RES "$1" | tr -d ' '; }
keeps() { [ "$(kept "$1")" -gt 0 ] || fail "$2: nothing of $1 is kept"; }
keeps_not() { [ "$(kept "$1")" = 0 ] || fail "$2: $(kept "$1") bytes of $1 are kept"; }
# again OPTIONS: mounts anew with these.
again() {
    cd /
    unmount_pool
    MOUNT_FLAGS="$OTHER_FLAGS $1"
    mount_pool
    cd "$DIR"
}

head -c 3000001 /dev/urandom >plain
cp plain marked
setfattr -n user.holdfast.direct_io -v on marked
sum=$(sha256sum <plain)
for file in plain marked; do cat "$file" >/dev/null; keeps "$file" "without an option"; done

again "-o direct_io=marked"
for file in plain marked; do
    [ "$(sha256sum <"$file")" = "$sum" ] || fail "marked: $file is another"
done
keeps plain "marked"
keeps_not marked "marked"
setfattr -n user.holdfast.direct_io -v off marked
cat marked >/dev/null
keeps marked "marked no more"
setfattr -n user.holdfast.direct_io -v on marked
again "-o direct_io"
for file in plain marked; do
    [ "$(sha256sum <"$file")" = "$sum" ] || fail "all: $file is another"
    keeps_not "$file" "all"
done
printf 'in the middle' | dd of=plain bs=1 seek=1000001 conv=notrunc status=none
printf 'in the middle' | dd of=marked bs=1 seek=1000001 conv=notrunc status=none
cmp plain marked || fail "they were written alike"
echo more >>plain
[ "$(stat -c %s plain)" = 3000006 ] || fail "an append has another size: $(stat -c %s plain)"
[ "$(tail -c 5 plain)" = more ] || fail "what was appended is not there"
head -c 100000 /dev/urandom >new
keeps_not new "a new one"
"$HOLDFAST" mount "$POOL" "$MOUNT" -o direct_io=often >"$WORK/refused" 2>&1 && fail "direct_io=often"
grep -q "direct_io=marked" "$WORK/refused" || fail "the refusal names no option: $(cat "$WORK/refused")"
if [ -n "$FSX" ]; then
    for ((seed = 1; seed * 1000 <= OPERATIONS; seed++)); do
        "$FSX" -N 1000 -S "$seed" -P "$WORK" "$DIR/fsx" >"$WORK/fsx.log" 2>&1 \
            || { tail -20 "$WORK/fsx.log" >&2; fail "fsx found a difference, seed $seed"; }
    done
fi
again ""
printf 'in the middle' >"$WORK/middle"
cmp -n 13 -i 1000001:0 plain "$WORK/middle" || fail "what was written directly is not there"
finish "${FSX:+$OPERATIONS operations of fsx}"
