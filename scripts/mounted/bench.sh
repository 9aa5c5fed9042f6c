#!/usr/bin/env bash
# `holdfast-lab bench` on a mount, in process and in memory, beside a directory: every measure is there,
# and nothing is left, neither at the end nor after a signal.
. "$(dirname "$0")/lib.sh"
is_ours || { NAME=bench; skip "the bench makes its own mounts"; }
begin bench

BENCH=$WORK/bench
mkdir "$BENCH" "$BENCH/place" "$BENCH/peer"
LAB=${LAB:-$ROOT/target/debug/holdfast-lab}
export HOLDFAST
bench=("$LAB" bench --scale 0.001 --place "$BENCH/place" --against "peer=$BENCH/peer")
run() { timeout 300 "${bench[@]}" "$@"; }

# Begins a run that takes long, and waits until its pool is mounted; $pid is the bench itself.
begin_run() {
    "${bench[@]}" --rounds 1000 --only names --targets fuse >"$BENCH/log" 2>&1 &
    pid=$!
    until grep -q "$BENCH/place" /proc/self/mounts; do
        kill -0 "$pid" 2>/dev/null || { cat "$BENCH/log" >&2; fail "it ended before its mount"; }
        sleep 0.05
    done
}
is_clean() {
    [ -z "$(ls -A "$BENCH/place")" ] || fail "$1: left $(ls -A "$BENCH/place") in its place"
    [ -z "$(ls -A "$BENCH/peer")" ] || fail "$1: left $(ls -A "$BENCH/peer") in the peer"
    ! grep -q "$BENCH" /proc/self/mounts || fail "$1: left a mount"
}

run --rounds 1 --threads 1,2 --out "$BENCH/out" >"$BENCH/log" 2>&1 \
    || { cat "$BENCH/log" >&2; fail "the bench fails"; }
is_clean "a whole run"
wanted=$("$LAB" bench --list | grep -c '^  ')
# Only a mount of the bench is checked; the caches of others the superuser alone can drop.
declare -A lacking=([fuse]=0 [process]=2 [memory]=2 [peer]=$(($(id -u) ? 2 : 1)))
for target in "${!lacking[@]}"; do
    measured=$(grep "| $target |" "$BENCH/out/bench.md" | cut -d'|' -f2 | sort -u | wc -l)
    [ "$measured" = $((wanted - lacking[$target])) ] || fail "$target: $measured of $wanted measures"
done
# Processor time of the server is told for the mount, and only there.
grep '| create | 1 | fuse |' "$BENCH/out/bench.md" | cut -d'|' -f9 | grep -q '[0-9]' \
    || fail "the server's processor time is not told"
grep -q '</svg>' "$BENCH/out/bench.svg" || fail "there is no picture"

begin_run
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[ "$code" != 0 ] || fail "a run that was stopped exits with 0"
is_clean "a signal"

# A killed run leaves its mount; the next one takes it away.
begin_run
kill -9 "$pid"
wait "$pid" || true
run --rounds 1 --only names --targets fuse >"$BENCH/log" 2>&1 \
    || { cat "$BENCH/log" >&2; fail "a run after a kill fails"; }
is_clean "a run after a kill"

finish "$wanted measures on 4 targets"
