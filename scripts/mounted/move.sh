#!/usr/bin/env bash
# A fileset moves between two pools under its programs: fsx (where it is installed), an SQLite writer, a load of names,
# files held open. Nothing is stale, nothing is lost, and nobody waits longer than MOVE_PAUSE_MS for an answer. Then one
# moves that a shared mount and an export over NFS show, and each goes on seeing what the other does.
#
#   MOVE_MOVES      [6; full: 50]        MOVE_PAUSE_MS   [250]        MOVE_ROUNDS     of mount and export [300; full: 3,000]
. "$(dirname "$0")/lib.sh"
NAME=move
need python3
begin_members move
MOVES=${MOVE_MOVES:-$(by_scale 6 50)}
PAUSE=${MOVE_PAUSE_MS:-250}
ROUNDS=${MOVE_ROUNDS:-$(by_scale 300 3000)}
FSX=$(command -v "$ROOT/target/tools/bin/fsx" || command -v fsx || true)
SERVER= LOADS=

leave() {
    local code=$?
    [ -z "$LOADS" ] || kill $LOADS 2>/dev/null || true
    umount -l "$MOUNT" 2>/dev/null || true
    umount -l "$WORK/shared" 2>/dev/null || true
    [ -z "$SERVER" ] || kill -9 "$SERVER" 2>/dev/null || true
    (exit "$code") || true
    clean_up
}
trap leave EXIT

for pool in one two; do "$HOLDFAST" create "$WORK/$pool.hf" --size 2G >/dev/null; done
"$HOLDFAST" fileset create "$WORK/one.hf:a" >/dev/null
"$HOLDFAST" serve "$WORK/one.hf" "$WORK/two.hf" --nfs 127.0.0.1:0 --state "$WORK/state" >"$WORK/told" 2>>"$WORK/log" &
SERVER=$!
for _ in $(seq 100); do
    grep -q 'is served' "$WORK/told" && break
    sleep 0.1
done
"$HOLDFAST" mount "$WORK/one.hf:a" "$MOUNT" >/dev/null || fail "it is not mounted: $(cat "$WORK/log")"

# Names, a file of its own that is held open, and how long the slowest answer took.
python3 "$ROOT/scripts/move.py" "$MOUNT" "$WORK/stop" >"$WORK/names" 2>&1 &
LOADS=$!
if command -v sqlite3 >/dev/null; then
    sqlite3 "$MOUNT/db" 'CREATE TABLE t (id INTEGER PRIMARY KEY, x); CREATE TABLE total (count); INSERT INTO total VALUES (0);'
    (
        n=0
        while [ ! -e "$WORK/stop" ]; do
            n=$((n + 1))
            sqlite3 -bail "$MOUNT/db" "PRAGMA synchronous=FULL; BEGIN; INSERT INTO t VALUES ($n, hex(randomblob(100)));
                UPDATE total SET count = count + 1; COMMIT;" >/dev/null || exit 1
            echo "$n" >"$WORK/committed"
        done
    ) &
    SQLITE=$!
    LOADS="$LOADS $SQLITE"
fi
if [ -n "$FSX" ]; then
    mkdir "$WORK/fsx"
    printf 'flen = 1048576\n[opsize]\nmin = 1\nmax = 65536\n[weights]\nposix_fallocate = 1\npunch_hole = 1\n' >"$WORK/fsx.toml"
    (
        seed=1
        while [ ! -e "$WORK/stop" ]; do
            "$FSX" -N 2000 -S "$seed" -f "$WORK/fsx.toml" -P "$WORK/fsx" "$MOUNT/fsx" >"$WORK/fsx.log" 2>&1 || exit 1
            seed=$((seed + 1))
        done
        echo "$((seed - 1))" >"$WORK/fsx.rounds"
    ) &
    FSX_PID=$!
    LOADS="$LOADS $FSX_PID"
fi
sleep 1

from=one to=two
: >"$WORK/pauses"
# move FILESET: to the other pool.
move() {
    "$HOLDFAST" --json fileset move "$WORK/$from.hf:$1" "$WORK/$to.hf:$1" >"$WORK/moved" 2>"$WORK/why" \
        || fail "a move of $1: $(cat "$WORK/why")"
    sed -n 's/.*"pauses_ms":\[\([0-9,]*\)\].*/\1/p' "$WORK/moved" | tr , '\n' >>"$WORK/pauses"
    [ "$from" = one ] && { from=two to=one; } || { from=one to=two; }
}
for ((n = 1; n <= MOVES; n++)); do move a; done

touch "$WORK/stop"
wait "${LOADS%% *}" || fail "names: $(tail -5 "$WORK/names")"
if [ -n "${SQLITE:-}" ]; then
    wait "$SQLITE" || fail "the SQLite writer failed"
    [ "$(sqlite3 "$MOUNT/db" 'PRAGMA integrity_check')" = ok ] || fail "the data base is corrupt"
    [ "$(sqlite3 "$MOUNT/db" 'SELECT count(*) FROM t')" = "$(cat "$WORK/committed")" ] || fail "a commit is lost"
fi
if [ -n "${FSX_PID:-}" ]; then
    wait "$FSX_PID" || { tail -20 "$WORK/fsx.log" >&2; fail "fsx found a difference"; }
fi
LOADS=
[ "$from" = one ] || move a

# Several fronts of one, which see each other.
"$HOLDFAST" fileset create "$WORK/one.hf:c" >/dev/null
mkdir "$WORK/shared"
"$HOLDFAST" mount "$WORK/one.hf:c" "$WORK/shared" --shared >/dev/null || fail "it is not mounted to be shared"
mkdir "$WORK/shared/nfs"
"$HOLDFAST" export add "$WORK/one.hf:c" /n --dir nfs --rw --squash none --insecure >/dev/null || fail "it is not exported"
port=$("$HOLDFAST" export list "$WORK/one.hf" | sed -n 's/.*,port=\([0-9]*\),.*/\1/p' | head -1)
timeout $((120 + ROUNDS)) python3 "$ROOT/scripts/shared.py" rounds "$WORK/shared/nfs" "nfs:$port:/n" --rounds "$ROUNDS" \
    >"$WORK/rounds" 2>&1 &
LOADS=$!
several=0
while is_running "$LOADS"; do
    move c
    several=$((several + 1))
done
wait "$LOADS" || fail "mount and export: $(tail -3 "$WORK/rounds")"
LOADS=
timeout 60 "$HOLDFAST" unmount "$WORK/shared" >/dev/null || fail "the shared mount cannot be unmounted"
longest=$(sort -n "$WORK/pauses" | tail -1)
stops=$(wc -l <"$WORK/pauses")
"$HOLDFAST" unmount "$MOUNT" >/dev/null || fail "it cannot be unmounted"
kill -TERM "$SERVER"
wait "$SERVER" || fail "the server did not close its pools"
SERVER=
for pool in one two; do
    POOL=$WORK/$pool.hf
    check_pool
done
said="$MOVES moves and $several of mount and export, $stops stops, $(sort -n "$WORK/pauses" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }') ms in the \
middle, $longest ms at most; $(tail -1 "$WORK/names"); ${SQLITE:+$(cat "$WORK/committed") commits of SQLite; }${FSX_PID:+$(cat \
"$WORK/fsx.rounds") times 2,000 operations of fsx; }"
[ "$longest" -le "$PAUSE" ] || fail "a pause of $longest ms, $PAUSE are allowed: $said"
say "PASSED: $said"
