#!/usr/bin/env bash
# PostgreSQL on the mount while the server is killed: the data base recovers each time, and no
# acknowledged transaction is lost.
#
#   POSTGRES_KILLS     [2; full: 20]
#   POSTGRES_SECONDS   of load before each kill [3; full: 10]
#   POSTGRES_SCALE     of pgbench's tables [1; full: 10]
#
# pgbench makes the load; beside it four clients insert numbers and note each that was committed.
# With TARGET_DIR PostgreSQL is killed and not the server.
. "$(dirname "$0")/lib.sh"
NAME=postgres
BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
[ -n "$BIN" ] || skip "postgresql is not installed"
need runuser stdbuf
# PostgreSQL does not run as root, and its user must reach the mount.
[ "$(id -u)" = 0 ] || skip "only root can become the user postgres"
KILLS=${POSTGRES_KILLS:-$(by_scale 2 20)}
SECONDS_EACH=${POSTGRES_SECONDS:-$(by_scale 3 10)}
SCALE_FACTOR=${POSTGRES_SCALE:-$(by_scale 1 10)}
WRITERS=4
MOUNT_FLAGS="$MOUNT_FLAGS -o allow_other"
begin postgres

chmod 755 "$WORK"
SOCKETS=$WORK/sockets
mkdir "$SOCKETS" "$DIR/data"
chown postgres "$SOCKETS" "$DIR/data"
chmod 700 "$DIR/data"

as_postgres() { (cd / && runuser -u postgres -- "$@"); }
query() { as_postgres "$BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$SOCKETS" -d postgres "$@"; }

start_postgres() {
    # -w waits until recovery is over.
    as_postgres "$BIN/pg_ctl" start -w -t 120 -s -D "$DIR/data" -l "$SOCKETS/log" \
        -o "-k $SOCKETS -c listen_addresses='' -c max_wal_size=64MB -c checkpoint_timeout=30s" \
        || { tail -30 "$SOCKETS/log" >&2; fail "PostgreSQL does not start"; }
}

# Prints the processes of this PostgreSQL, and of no other: they work in its directory.
postgres_pids() {
    local pid
    for pid in $(pgrep -u postgres); do
        [ "$(readlink "/proc/$pid/cwd")" != "$DIR/data" ] || echo "$pid"
    done
}

# Ends PostgreSQL as a crash does.
kill_postgres() {
    local pids
    while pids=$(postgres_pids | tr '\n' ' ') && [ -n "$pids" ]; do
        # shellcheck disable=SC2086  # a list
        kill -9 $pids 2>/dev/null || true
        sleep 0.05
    done
    rm -f "$SOCKETS"/.s.*
}
end_everything() { kill_postgres; clean_up; }
trap end_everything EXIT

as_postgres "$BIN/initdb" -D "$DIR/data" --data-checksums -A trust >"$WORK/initdb.log" 2>&1 \
    || { tail -20 "$WORK/initdb.log" >&2; fail "initdb"; }
start_postgres
as_postgres "$BIN/pgbench" -h "$SOCKETS" -i -q -s "$SCALE_FACTOR" postgres >"$WORK/init.log" 2>&1 \
    || { tail -20 "$WORK/init.log" >&2; fail "pgbench -i"; }
query -c 'CREATE TABLE noted (writer int, n int, PRIMARY KEY (writer, n))'

# writer W FIRST: inserts FIRST, FIRST + 1, ... and prints each number after its commit.
writer() {
    awk -v writer="$1" -v n="$2" 'BEGIN {
        for (last = n + 1000000; n < last; n++)
            printf "INSERT INTO noted VALUES (%d, %d);\n\\echo %d\n", writer, n, n
    }' | as_postgres stdbuf -oL "$BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$SOCKETS" -d postgres
}

transactions=0
next=()
for w in $(seq "$WRITERS"); do next[w]=1; done
for kill in $(seq "$KILLS"); do
    clients=()
    for w in $(seq "$WRITERS"); do
        writer "$w" "${next[$w]}" >"$WORK/noted.$w" 2>/dev/null &
        clients+=($!)
    done
    as_postgres "$BIN/pgbench" -h "$SOCKETS" -n -c 4 -T "$((SECONDS_EACH * 10))" postgres \
        >"$WORK/pgbench.log" 2>&1 &
    clients+=($!)
    sleep "$SECONDS_EACH"
    if is_ours; then kill_server; fi
    kill_postgres
    # The clients end by themselves when nobody answers.
    for pid in "${clients[@]}"; do wait "$pid" 2>/dev/null || true; done
    remount_pool
    rm -f "$DIR/data/postmaster.pid"
    start_postgres
    for w in $(seq "$WRITERS"); do
        # The last line may be half written by a client that was killed.
        acknowledged=$(sed -n '/^[0-9][0-9]*$/p' "$WORK/noted.$w" | sort -n | tail -n 1)
        acknowledged=${acknowledged:-$((next[w] - 1))}
        there=$(query -c "SELECT count(*) FROM noted WHERE writer = $w AND n <= $acknowledged")
        [ "$there" = "$acknowledged" ] \
            || fail "kill $kill: writer $w had $acknowledged acknowledged, $there are there"
        next[w]=$(($(query -c "SELECT coalesce(max(n), 0) FROM noted WHERE writer = $w") + 1))
    done
    # pgbench moves money between tables that must add up.
    query -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
                 AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)' \
        | grep -qx t || fail "kill $kill: pgbench's sums differ"
done
for w in $(seq "$WRITERS"); do transactions=$((transactions + next[w] - 1)); done
history=$(query -c 'SELECT count(*) FROM pgbench_history')
# Reads every page; its checksums are PostgreSQL's own.
as_postgres "$BIN/pg_dumpall" -h "$SOCKETS" >"$WORK/dump" || fail "pg_dumpall"
as_postgres "$BIN/pg_ctl" stop -s -w -m fast -D "$DIR/data" || fail "PostgreSQL does not stop"
as_postgres "$BIN/pg_checksums" --check -D "$DIR/data" >"$WORK/checksums.log" 2>&1 \
    || { tail -20 "$WORK/checksums.log" >&2; fail "pg_checksums"; }
say "$KILLS kills, $transactions noted and $history pgbench transactions, none lost"
finish
