#!/usr/bin/env bash
# How mounts begin and end: signals under load, a second mount, a dead mount point, read-only,
# a full pool that is emptied again.
POOL_SIZE=${POOL_SIZE:-256M}
. "$(dirname "$0")/lib.sh"
NAME=ends
need dd perl
is_ours || skip "there is no server to end here"
begin ends

# A load that goes on until it fails.
load() {
    local n=0
    while printf '%s' "$n" >"$DIR/load.$1" && mv "$DIR/load.$1" "$DIR/done.$1"; do
        n=$((n + 1))
    done 2>/dev/null
}

end_under_load() {
    local signal=$1 pids=() pid
    printf kept >"$DIR/kept.$signal"
    for id in 1 2 3; do
        load "$id" &
        pids+=($!)
    done
    sleep 0.5
    pid=$(server_pid)
    kill "-$signal" "$pid"
    for _ in $(seq 1500); do is_running "$pid" || break; sleep 0.02; done
    is_running "$pid" && fail "the server does not end by SIG$signal"
    for pid in "${pids[@]}"; do
        for _ in $(seq 500); do is_running "$pid" || break; sleep 0.02; done
        is_running "$pid" && fail "a writer hangs after SIG$signal"
        wait "$pid" 2>/dev/null || true
    done
    ! mountpoint -q "$MOUNT" || fail "the mount stays after SIG$signal"
    check_pool
    mount_pool
    "$HOLDFAST" status "$MOUNT" --json | grep -q '"was_needed":false' \
        || fail "the pool was not closed by SIG$signal"
    [ "$(cat "$DIR/kept.$signal")" = kept ] || fail "what was written before SIG$signal is lost"
}

end_under_load TERM
end_under_load INT
say "SIGTERM and SIGINT under load end cleanly"

mkdir "$WORK/second"
code=0
timeout 60 "$HOLDFAST" mount "$POOL" "$WORK/second" --daemon >"$WORK/refused" 2>&1 || code=$?
[ "$code" = 1 ] || { cat "$WORK/refused" >&2; fail "a second mount ends with $code, not 1"; }
[ -e "$DIR/kept.TERM" ] || fail "the first mount is gone after a second was refused"
say "a second mount is refused: $(head -n 1 "$WORK/refused")"

kill_server
mount_pool
[ "$(cat "$DIR/kept.TERM")" = kept ] || fail "a dead mount was not replaced"
say "a mount takes the place of a dead one"

unmount_pool
MOUNT_FLAGS="-o ro" mount_pool
! touch "$DIR/refused" 2>/dev/null || fail "a read-only mount takes a change"
[ "$(cat "$DIR/kept.TERM")" = kept ] || fail "a read-only mount does not read"
unmount_pool
check_pool
mount_pool

rm -rf "${DIR:?}"/*
sync "$DIR"
available() { df --output=avail -B1 "$DIR" | tail -n 1; }
# Prints a sum of every name and byte.
sum_of_all() { (cd "$DIR" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | md5sum; ls "$DIR" | md5sum); }

for kind in large small mixed; do
    code=0
    before=$(available)
    if [ "$kind" != small ]; then
        dd if=/dev/urandom of="$DIR/large" bs=1M 2>"$WORK/errors" || code=$?
        [ "$code" != 0 ] || fail "a full pool takes more"
        grep -q 'No space left' "$WORK/errors" || fail "a full pool says: $(head -n 1 "$WORK/errors")"
    fi
    if [ "$kind" != large ]; then
        code=0
        perl -e 'for my $n (0 .. 1e6) {
            open my $f, ">", "$ARGV[0]/small.$n" or die "small.$n: $!";
            syswrite($f, "x" x 3000) == 3000 or die "small.$n: $!";
            close $f or die "small.$n: $!" }' "$DIR" 2>"$WORK/errors" || code=$?
        grep -q 'No space left' "$WORK/errors" || fail "a full pool says: $(head -n 1 "$WORK/errors")"
    fi
    sync "$DIR"
    files=$(find "$DIR" -type f | wc -l)
    say "$kind: full with $files files, $(du -sh "$DIR" | cut -f1)"
    before_sum=$(sum_of_all)
    cycle_pool
    [ "$(sum_of_all)" = "$before_sum" ] || fail "$kind: a full pool is not as it was after a remount"
    kill_server
    mount_pool
    [ "$(sum_of_all)" = "$before_sum" ] || fail "$kind: a full pool is not as it was after kill -9"
    find "$DIR" -mindepth 1 -delete
    cycle_pool
    after=$(available)
    # Anodes are kept for the next files.
    [ "$after" -ge $((before - (4 << 20) - 700 * files)) ] || fail "$kind: $((before - after)) bytes do not come back"
done
say "a full pool can be emptied, and its space comes back"
finish
