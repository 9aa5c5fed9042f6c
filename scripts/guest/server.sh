#!/usr/bin/env bash
# The host's side of nfs.sh: serves the pool with an export that is added by command, kills the server and starts it
# again while the guest has a load, and closes and checks the pool when the guest is done.
#
# What the guest does is told by files in $SHARE: `load` (it has a load), `alive` (it has done something since this
# was removed), `end`. What is told to it: `line`, `killed`, `ended`, `failed`.
set -euo pipefail
export HOLDFAST_RUN_DIR=$WORK/run
server=
fail() { echo "$*" >"$WORK/failed"; : >"$SHARE/failed"; exit 1; }

serve() {
    : >"$WORK/told"
    "$HOLDFAST" serve "$WORK/pool.hf" --nfs "$HOST_IP:$GUEST_PORT" --portmap "$HOST_IP:111" \
        --state "$WORK/state" >"$WORK/told" 2>>"$WORK/log" &
    server=$!
    until grep -q 'mount -t nfs' "$WORK/told"; do
        kill -0 "$server" 2>/dev/null || fail "does not start: $(tail -5 "$WORK/log")"
        sleep 0.05
    done
}
die() { kill -9 "$server"; wait "$server" 2>/dev/null || true; }

serve
"$HOLDFAST" export add "$WORK/pool.hf" /a --to "${HOST_IP%.*}.0/24" --rw --squash none >"$WORK/added" 2>&1 \
    || fail "nothing is exported: $(cat "$WORK/added")"
"$HOLDFAST" export list "$WORK/pool.hf" | grep -o 'mount -t nfs .*:/a DIRECTORY' >"$SHARE/line.new" \
    || fail "no line to mount by: $("$HOLDFAST" export list "$WORK/pool.hf")"
mv "$SHARE/line.new" "$SHARE/line"

kills=0
while [ ! -e "$SHARE/end" ]; do
    kill -0 "$server" 2>/dev/null || fail "ended by itself: $(tail -5 "$WORK/log")"
    if [ -e "$SHARE/load" ] && [ "$kills" -lt "$GUEST_KILLS" ]; then
        rm -f "$SHARE/alive"
        until [ -e "$SHARE/alive" ] || [ -e "$SHARE/end" ]; do sleep 0.05; done
        sleep "$((RANDOM % 2)).$((RANDOM % 90 + 10))"
        die
        kills=$((kills + 1))
        sleep "0.$((RANDOM % 9))"
        serve
        [ "$kills" -lt "$GUEST_KILLS" ] || : >"$SHARE/killed"
    else
        sleep 0.1
    fi
done
kill -TERM "$server"
wait "$server" || fail "the pool cannot be closed: $(tail -5 "$WORK/log")"
"$HOLDFAST" check "$WORK/pool.hf" >"$WORK/check" 2>&1 || fail "the pool is damaged: $(cat "$WORK/check")"
echo "$kills" >"$SHARE/ended"
