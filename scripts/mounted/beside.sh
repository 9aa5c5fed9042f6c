#!/usr/bin/env bash
# The same system calls, by chance and with odd arguments, on the mount and on ext4 on a loop device:
# same answers, same trees. docs/SEMANTICS.md says what differs; such calls are not made.
#
#   BESIDE_SEEDS   [60; full: 5,000]       BESIDE_SEED   the first of them [0; full: one of the day's]
. "$(dirname "$0")/lib.sh"
NAME=beside
SEEDS=${BESIDE_SEEDS:-$(by_scale 60 5000)}
SEED=${BESIDE_SEED:-$(by_scale 0 "$(date +%Y%m%d)00000")}
BESIDE=$ROOT/target/debug/beside
[ -x "$BESIDE" ] || skip "it is not built: ./test beside-tool"
[ "$(id -u)" = 0 ] || skip "only root becomes other users"
need losetup mkfs.ext4
begin beside

OTHER=$WORK/ext4
clean_up_both() {
    umount -l "$OTHER" 2>/dev/null || true
    clean_up
}
truncate -s 1G "$OTHER.img"
mkfs.ext4 -q -F "$OTHER.img"
mkdir "$OTHER"
mount -o loop "$OTHER.img" "$OTHER" 2>/dev/null || skip "there is no loop device for an ext4"
trap clean_up_both EXIT
say "$SEEDS histories, from seed $SEED on"
"$BESIDE" "$DIR" "$OTHER" "$SEED" "$SEEDS" >"$WORK/beside.log" \
    || { cat "$WORK/beside.log" >&2; fail "the mount and ext4 differ: again with BESIDE_SEED and BESIDE_SEEDS=1"; }
umount "$OTHER"
finish "$(tail -1 "$WORK/beside.log")"
