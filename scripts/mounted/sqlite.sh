#!/usr/bin/env bash
# SQLite under kill -9: the data base is never corrupt, and nothing that was committed is lost.
#
#   SQLITE_TRANSACTIONS   in each journal mode [2,000; full: 100,000]
#   SQLITE_KILLS          in each journal mode [3; full: 20]
#
# With TARGET_DIR the writer is killed and not the server.
. "$(dirname "$0")/lib.sh"
NAME=sqlite
need sqlite3 stdbuf
TRANSACTIONS=${SQLITE_TRANSACTIONS:-$(by_scale 2000 100000)}
KILLS=${SQLITE_KILLS:-$(by_scale 3 20)}
begin sqlite

# Prints the transactions FIRST..LAST, each of which says its number after its commit.
transactions() {
    # EXTRA: FULL does not sync the directory after it has removed the rollback journal, so what it
    # acknowledges last may be undone.
    echo "PRAGMA synchronous=EXTRA;"
    awk -v first="$1" -v last="$2" 'BEGIN {
        for (n = first; n <= last; n++)
            printf "BEGIN; INSERT INTO t VALUES (%d, hex(randomblob(100))); " \
                   "UPDATE total SET count = count + 1; COMMIT; SELECT %d;\n", n, n
    }'
}

ask() { sqlite3 -bail "$DB" "$1"; }

# The data base is whole, and holds 1..N without a gap, N at least what was acknowledged.
verify() {
    local acknowledged=$1 verdict highest
    verdict=$(ask 'PRAGMA integrity_check')
    [ "$verdict" = ok ] || fail "$MODE: corrupt: $verdict"
    highest=$(ask 'SELECT ifnull(max(id), 0) FROM t')
    [ "$(ask 'SELECT count(*) FROM t')" = "$highest" ] || fail "$MODE: a transaction in the middle is lost"
    [ "$(ask 'SELECT count FROM total')" = "$highest" ] || fail "$MODE: half of a transaction is there"
    [ "$highest" -ge "$acknowledged" ] || fail "$MODE: $acknowledged acknowledged, $highest there"
    echo "$highest"
}

run_mode() {
    MODE=$1 DB=$DIR/$1.db
    local done=0 kills=0 acknowledged writer chunk
    chunk=$((TRANSACTIONS / (KILLS + 1) + 1))
    ask "PRAGMA journal_mode=$MODE; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
         CREATE TABLE total (count); INSERT INTO total VALUES (0);" >/dev/null
    while [ "$done" -lt "$TRANSACTIONS" ]; do
        : >"$WORK/acknowledged"
        transactions "$((done + 1))" "$TRANSACTIONS" >"$WORK/sql"
        stdbuf -oL sqlite3 -bail "$DB" <"$WORK/sql" >"$WORK/acknowledged" 2>"$WORK/errors" &
        writer=$!
        if [ "$kills" -lt "$KILLS" ]; then
            # Somewhere in the next part, and not at its start.
            local until=$((done + chunk / 2 + RANDOM % (chunk / 2 + 1)))
            while is_running "$writer" && [ "$(tail -n 1 "$WORK/acknowledged" | grep -E '^[0-9]+$' || echo 0)" -lt "$until" ]; do
                sleep 0.01
            done
            if is_ours; then kill_server; else kill -9 "$writer" 2>/dev/null || true; fi
            wait "$writer" 2>/dev/null || true
            remount_pool
            kills=$((kills + 1))
        else
            wait "$writer" || { cat "$WORK/errors" >&2; fail "$MODE: the writer failed"; }
        fi
        # The last line may be half written by a writer that was killed.
        acknowledged=$(sed -n '/^[0-9][0-9]*$/p' "$WORK/acknowledged" | awk 'max < $1 { max = $1 } END { print max + 0 }')
        # SQLite takes a directory that it can't open for one that needs no sync (unixDelete): it
        # commits though the server died right after the journal's unlink. Whatever it committed
        # before that one, it committed to a server that was alive afterwards.
        if is_ours && [ "$MODE" = delete ] && [ "$acknowledged" -gt 0 ]; then
            acknowledged=$((acknowledged - 1))
        fi
        done=$(verify "$acknowledged")
    done
    say "$MODE: $done transactions, $kills kills, never corrupt"
}

run_mode wal
run_mode delete
finish
