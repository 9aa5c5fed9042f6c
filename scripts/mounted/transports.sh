#!/usr/bin/env bash
# By each transport: the everyday tools, kill -9 and each way to unmount while clients are at work.
#
#   TRANSPORT_ROUNDS   rounds of unmounting under load [2; full: 20]
. "$(dirname "$0")/lib.sh"
NAME=transports
ROUNDS=${TRANSPORT_ROUNDS:-$(by_scale 2 20)}
is_ours || skip "it is about mounts"
here=$(cd "$(dirname "$0")" && pwd)

for transport in dev uring; do
    for test in smoke kill; do
        code=0
        MOUNT_FLAGS="--transport $transport" POOL_SIZE=2G "$here/$test.sh" || code=$?
        [ "$code" -ne 77 ] || exit 77
        [ "$code" -eq 0 ] || fail "$test by $transport exits with $code"
    done
done

# Makes, reads and removes files until the mount is gone.
client() {
    local number=0
    while mkdir "$DIR/$1" 2>/dev/null; do
        number=$((number + 1))
        head -c 300000 /dev/zero >"$DIR/$1/long" 2>/dev/null || break
        cat "$DIR/$1/long" >/dev/null 2>&1 || break
        : >"$DIR/$1/$number" 2>/dev/null || break
        sync "$DIR/$1/long" 2>/dev/null || break
        rm -r "${DIR:?}/$1" 2>/dev/null || break
    done
}

POOL_SIZE=1G
for transport in dev uring; do
    MOUNT_FLAGS="--transport $transport"
    WORK=
    begin "$transport"
    used=$("$HOLDFAST" status "$MOUNT" | sed -n 's/^ *requests: by //p')
    say "requests come by $used"
    for round in $(seq "$ROUNDS"); do
        for way in --lazy --force; do
            pids=()
            for id in 1 2 3 4; do
                client "$round-$way-$id" 2>/dev/null &
                pids+=($!)
            done
            sleep "0.$((2 + RANDOM % 4))"
            timeout 60 "$HOLDFAST" unmount "$MOUNT" "$way" >/dev/null 2>&1 || [ $? -ne 124 ] \
                || fail "unmount $way hangs"
            for pid in "${pids[@]}"; do
                for _ in $(seq 500); do is_running "$pid" || break; sleep 0.02; done
                is_running "$pid" && fail "a client hangs after unmount $way"
                wait "$pid" 2>/dev/null || true
            done
            # A lazy one ends with its last user.
            for _ in $(seq 500); do
                "$HOLDFAST" check "$POOL" >/dev/null 2>&1 && break
                sleep 0.05
            done
            check_pool
            mount_pool
            mkdir -p "$DIR"
        done
    done
    finish
    rm -rf "$WORK"
done
