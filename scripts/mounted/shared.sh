#!/usr/bin/env bash
# Several fronts of one fileset: two shared mounts see each other; so do a mount and an export over NFS, which both see
# what is imported; a load that
# holds the kernel's locks of inodes and pages ends; a server that is killed under it leaves mounts that are dead and
# do not hang.
#
#   SHARED_ROUNDS   [100; full: 100,000]     SHARED_SECONDS  of load [5; full: 1,800]
. "$(dirname "$0")/lib.sh"
NAME=shared
need python3
is_ours || { say "a target of others has one front"; exit 77; }
ROUNDS=${SHARED_ROUNDS:-$(by_scale 100 100000)}
SECONDS_OF_LOAD=${SHARED_SECONDS:-$(by_scale 5 1800)}
MOUNT_FLAGS="${MOUNT_FLAGS:-} --shared"
PROGRAM=$ROOT/scripts/shared.py
SECOND= SERVER=

leave() {
    local code=$?
    [ -z "$SERVER" ] || kill -9 "$SERVER" 2>/dev/null || true
    [ -z "$SECOND" ] || umount -l "$SECOND" 2>/dev/null || true
    (exit "$code") || true
    clean_up
}

# fronts TIME ARGUMENTS...: the program, which must not hang.
fronts() {
    local time=$1 code=0
    shift
    timeout -k 5 "$time" python3 "$PROGRAM" "$@" || code=$?
    [ "$code" -ne 124 ] && [ "$code" -ne 137 ] || fail "shared.py $1 hangs"
    [ "$code" -eq 0 ] || fail "shared.py $1 exits with $code"
}

begin shared
trap leave EXIT
SECOND=$WORK/second
mkdir "$SECOND" "$DIR/rounds" "$DIR/load"

mount_second() { "$HOLDFAST" mount "$POOL" "$SECOND" --shared >/dev/null || fail "there is no second mount"; }

mount_second
fronts $((60 + ROUNDS)) rounds "$DIR/rounds" "$SECOND/shared/rounds" --rounds "$ROUNDS"
for name in 0 1 2 3 4 5 6 7 8 9 10 11; do echo >"$DIR/load/busy$name"; done
fronts $((60 + SECONDS_OF_LOAD)) load "$DIR/load" "$SECOND/shared/load" --seconds "$SECONDS_OF_LOAD"
sleep 1.1
fronts 60 check "$DIR/load" "$SECOND/shared/load"
mkdir "$DIR/locks"
fronts $((300 + ROUNDS)) locks "$DIR/locks" "$SECOND/shared/locks" --rounds $((ROUNDS * 4))

# Killed in the middle of a load: both mounts are dead, and say so.
python3 "$PROGRAM" load "$DIR/load" "$SECOND/shared/load" --seconds 30 >/dev/null 2>&1 &
LOAD=$!
sleep 1
kill_server
timeout 60 tail --pid="$LOAD" -f /dev/null || fail "a program hangs on a mount whose server was killed"
code=0
timeout 10 stat "$SECOND" >/dev/null 2>&1 || code=$?
[ "$code" -ne 124 ] || fail "the second mount hangs after kill -9"
remount_pool
umount -l "$SECOND"
mount_second
fronts 60 check "$DIR/load" "$SECOND/shared/load"
timeout 60 "$HOLDFAST" unmount "$SECOND" >/dev/null || fail "the second mount cannot be unmounted"
unmount_pool
check_pool

# An export and a mount: one sees the other.
"$HOLDFAST" serve "$POOL" --nfs 127.0.0.1:0 --export /a:rw,squash=none,insecure >"$WORK/told" 2>>"$WORK/log" &
SERVER=$!
for _ in $(seq 100); do
    grep -q 'mount -t nfs' "$WORK/told" && break
    sleep 0.1
done
PORT=$(sed -n 's/.*,port=\([0-9]*\),.*/\1/p' "$WORK/told")
[ -n "$PORT" ] || fail "the server does not answer: $(cat "$WORK/log")"
"$HOLDFAST" mount "$POOL" "$MOUNT" >/dev/null 2>&1 && fail "a mount that is alone goes with an export"
"$HOLDFAST" mount "$POOL" "$MOUNT" --shared >/dev/null || fail "a shared mount does not go with an export"
mkdir "$MOUNT/nfs"
"$HOLDFAST" export add "$POOL" /n --dir nfs --rw --squash none --insecure >/dev/null || fail "it is not exported"
fronts $((60 + ROUNDS)) rounds "$MOUNT/nfs" "nfs:$PORT:/n" --rounds "$ROUNDS"
# A tree that is imported meanwhile, as mount and client see it.
mkdir "$WORK/tree"
fronts $((60 + ROUNDS)) imports "$MOUNT/nfs" "nfs:$PORT:/n" --rounds $((ROUNDS < 100 ? ROUNDS : 100)) \
    --tree "$WORK/tree" --by "$HOLDFAST copy-in $WORK/tree $POOL --path /nfs"
timeout 60 "$HOLDFAST" unmount "$MOUNT" >/dev/null || fail "the mount beside the export cannot be unmounted"
kill -TERM "$SERVER"
wait "$SERVER" || fail "the server did not close its pool"
SERVER=
check_pool
say "PASSED: $ROUNDS rounds, $SECONDS_OF_LOAD s of load"

