#!/usr/bin/env bash
# A pool in stripes over five loop devices under fsx, SQLite, PostgreSQL and copies of a tree of
# sources: the file behind one device is filled with garbage, then the device is torn away. The load
# goes on. A spare comes and is rebuilt. All is there, a scrub is clean, and it is all there without
# another device, too.
#
#   TORN_FILES     in the tree [1,500; full: 75,000, as Linux has]
#   TORN_SECONDS   of load at each stage [3; full: 60]
#   TORN_MIB       each device [1,024; full: 6,144]
#
# fsx and PostgreSQL take part where they are installed.
. "$(dirname "$0")/lib.sh"
need sqlite3 stdbuf losetup mkfs.ext4 perl runuser unshare
[ "$(id -u)" = 0 ] || skip "only root can make loop devices"
MOUNT_FLAGS="$MOUNT_FLAGS -o allow_other"
# The file system that is shut down is nobody else's: stress-ng and others sync each mount they see.
[ -n "${TORN_ALONE:-}" ] || TORN_ALONE=1 exec unshare --mount --propagation private "$0" "$@"
begin_members torn
FILES=${TORN_FILES:-$(by_scale 1500 75000)}
STAGE=${TORN_SECONDS:-$(by_scale 3 60)}
MIB=${TORN_MIB:-$(by_scale 1024 6144)}
FSX=$(command -v "$ROOT/target/tools/bin/fsx" || command -v fsx || true)
BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
BRITTLE=$WORK/brittle
loops=()

end_everything() {
    local code=$?
    : >"$WORK/stop"
    [ -z "$BIN" ] || pkill -9 -u postgres -f "$WORK" || true
    wait || true
    (exit "$code") || true
    clean_up_loops "$code"
}
clean_up_loops() {
    cd /
    "$HOLDFAST" unmount "$MOUNT" --lazy >/dev/null 2>&1 || umount -l "$MOUNT" 2>/dev/null || true
    local loop
    for loop in "${loops[@]}"; do losetup --detach "$loop" 2>/dev/null || true; done
    umount -l "$BRITTLE" 2>/dev/null || true
    (exit "$1") || true
    if [ "$1" -ne 0 ] && [ -n "${KEEP:-}" ]; then say "kept $WORK"; else rm -rf "$WORK"; fi
}
trap end_everything EXIT

# loop_of FILE: attaches a loop device, and leaves its path in $loop.
loop_of() {
    loop=$(losetup --find --show "$1") || skip "there is no loop device"
    loops+=("$loop")
}
# What lies on a file system that is shut down answers each request with an error, at once.
tear_away() {
    perl -e 'open(my $it, "<", $ARGV[0]) or die "$!"; my $how = pack("L", 2);
             ioctl($it, 0x8004587d, $how) or die "$!"' "$BRITTLE" || fail "it cannot be torn away"
}

mkdir "$BRITTLE"
truncate -s $((MIB + MIB / 8 + 64))M "$WORK/brittle.img"
mkfs.ext4 -q -F "$WORK/brittle.img"
loop_of "$WORK/brittle.img"
mount "$loop" "$BRITTLE"
devices=()
for n in 0 1 2 3; do
    truncate -s "${MIB}M" "$WORK/d$n.img"
    loop_of "$WORK/d$n.img"
    devices+=("$loop")
done
fallocate -l "${MIB}M" "$BRITTLE/d4.img"
loop_of "$BRITTLE/d4.img"
TORN=$loop
devices+=("$TORN")
POOL=${devices[0]}
"$HOLDFAST" create --group "raid5:$(IFS=,; echo "${devices[*]}")" >/dev/null
mount_pool
DIR=$MOUNT/work
mkdir "$DIR"
chmod 755 "$WORK"

# broken LOAD WHY: notes that a load has failed. The stages ask for it.
broken() { printf '%s\n' "$1: $2" >>"$WORK/broken"; }
is_wanted() { [ ! -e "$WORK/stop" ] && [ ! -e "$WORK/broken" ]; }
no_load_is_broken() {
    [ ! -e "$WORK/broken" ] || fail "$1: $(cat "$WORK/broken")"
}

# Sources as those of Linux: 16 files a directory, most of some KiB.
make_tree() {
    perl -e 'my ($root, $files) = @ARGV; srand(7); mkdir $root;
        for my $n (0 .. $files - 1) {
            my $directory = sprintf("%s/%03d", $root, $n / 256);
            mkdir $directory if $n % 256 == 0;
            $directory .= sprintf("/%02d", $n / 16 % 16);
            mkdir $directory if $n % 16 == 0;
            my $length = int(exp(6 + 5.5 * rand()));
            open(my $file, ">", "$directory/$n.c") or die "$directory/$n.c: $!";
            print $file substr("source $n line " x ($length / 12 + 1), 0, $length) or die "$!";
            close($file) or die "$directory/$n.c: $!";
        }' "$1" "$2"
}
sums_of() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
tree_load() {
    local round
    for ((round = 0; ; round++)); do
        is_wanted || break
        cp -r "$DIR/tree" "$DIR/copy" || { broken tree "cp, round $round"; break; }
        sums_of "$DIR/copy" | cmp -s - "$WORK/tree.sums" \
            || { broken tree "the copy of round $round is another"; break; }
        rm -r "$DIR/copy" || { broken tree "rm, round $round"; break; }
        echo "$round" >"$WORK/tree.rounds"
    done
}

fsx_load() {
    local round
    for ((round = 1; ; round++)); do
        is_wanted || break
        "$FSX" -N 3000 -S "$round" -P "$WORK" "$DIR/fsx" >"$WORK/fsx.log" 2>&1 \
            || { broken fsx "round $round: $(tail -n 5 "$WORK/fsx.log")"; break; }
        echo "$round" >"$WORK/fsx.rounds"
    done
}

# Each transaction says its number after its commit.
sqlite_load() {
    local n=1
    : >"$WORK/acknowledged"
    while is_wanted; do
        awk -v first="$n" 'BEGIN {
            print "PRAGMA synchronous=EXTRA;"
            for (n = first; n < first + 100; n++)
                printf "BEGIN; INSERT INTO t VALUES (%d, hex(randomblob(100))); " \
                       "UPDATE total SET count = count + 1; COMMIT; SELECT %d;\n", n, n
        }' | stdbuf -oL sqlite3 -bail "$DIR/db" >>"$WORK/acknowledged" 2>"$WORK/sqlite.errors" \
            || { broken sqlite "$(cat "$WORK/sqlite.errors")"; break; }
        n=$((n + 100))
    done
}
sqlite_count() { tail -n 1 "$WORK/acknowledged" | grep -E '^[0-9]+$' || echo 0; }

as_postgres() { (cd / && runuser -u postgres -- "$@"); }
query() { as_postgres "$BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$WORK/sockets" -d postgres "$@"; }
start_postgres() {
    as_postgres "$BIN/pg_ctl" start -w -t 120 -s -D "$DIR/data" -l "$WORK/sockets/log" \
        -o "-k $WORK/sockets -c listen_addresses='' -c max_wal_size=64MB -c checkpoint_timeout=30s" \
        || { tail -30 "$WORK/sockets/log" >&2; fail "PostgreSQL does not start"; }
}
postgres_load() {
    while is_wanted; do
        as_postgres "$BIN/pgbench" -h "$WORK/sockets" -n -c 4 -T 2 postgres >>"$WORK/pgbench.log" 2>&1 \
            || { broken postgres "$(tail -n 5 "$WORK/pgbench.log")"; break; }
    done
}

make_tree "$DIR/tree" "$FILES" || fail "the tree cannot be made"
sums_of "$DIR/tree" >"$WORK/tree.sums"
[ "$(wc -l <"$WORK/tree.sums")" = "$FILES" ] || fail "the tree has another number of files"
sqlite3 "$DIR/db" 'PRAGMA journal_mode=WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
    CREATE TABLE total (count); INSERT INTO total VALUES (0);' >/dev/null
if [ -n "$BIN" ]; then
    mkdir "$WORK/sockets" "$DIR/data"
    chown postgres "$WORK/sockets" "$DIR/data"
    chmod 700 "$DIR/data"
    as_postgres "$BIN/initdb" -D "$DIR/data" --data-checksums -A trust >"$WORK/initdb.log" 2>&1 \
        || { tail -20 "$WORK/initdb.log" >&2; fail "initdb"; }
    start_postgres
    as_postgres "$BIN/pgbench" -h "$WORK/sockets" -i -q -s 1 postgres >"$WORK/init.log" 2>&1 \
        || { tail -20 "$WORK/init.log" >&2; fail "pgbench -i"; }
fi

begin_loads() {
    loads=()
    tree_load & loads+=($!)
    sqlite_load & loads+=($!)
    if [ -n "$FSX" ]; then fsx_load & loads+=($!); fi
    if [ -n "$BIN" ]; then postgres_load & loads+=($!); fi
}
# goes_on STAGE: the loads do work for a time, and none fails.
goes_on() {
    local before after
    before=$(sqlite_count)
    sleep "$STAGE"
    after=$(sqlite_count)
    no_load_is_broken "$1"
    [ "$after" -gt "$before" ] || fail "$1: no transaction in $STAGE s"
    say "$1: $(((after - before) / STAGE)) transactions a second of SQLite"
}
begin_loads
goes_on "with all devices"
dd if=/dev/urandom of="$BRITTLE/d4.img" bs=1M count="$MIB" conv=notrunc status=none
goes_on "with one device full of garbage"
tear_away
goes_on "with one device torn away"
is_state "$TORN " failed

truncate -s "${MIB}M" "$WORK/d5.img"
loop_of "$WORK/d5.img"
SPARE=$loop
begun=$SECONDS
"$HOLDFAST" device add "$POOL" "$SPARE" --spare >/dev/null || fail "the spare is refused"
wait_online "$SPARE "
no_load_is_broken "while the spare is rebuilt"
say "rebuilt on the spare within $((SECONDS - begun)) s"
goes_on "on the spare"
: >"$WORK/stop"
for load in "${loads[@]}"; do wait "$load" || true; done
no_load_is_broken "at the end"

verify() {
    local highest
    sums_of "$DIR/tree" | cmp -s - "$WORK/tree.sums" || fail "$1: the tree is another"
    [ "$(sqlite3 "$DIR/db" 'PRAGMA integrity_check')" = ok ] || fail "$1: SQLite's file is corrupt"
    highest=$(sqlite3 "$DIR/db" 'SELECT count(*) FROM t')
    [ "$highest" = "$(sqlite3 "$DIR/db" 'SELECT count FROM total')" ] || fail "$1: half a transaction"
    [ "$highest" = "$(sqlite_count)" ] || fail "$1: $(sqlite_count) acknowledged, $highest there"
    [ -n "$BIN" ] || return 0
    query -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
                 AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) FROM pgbench_history)' \
        | grep -qx t || fail "$1: pgbench's sums differ"
    as_postgres "$BIN/pg_dumpall" -h "$WORK/sockets" >"$WORK/dump" || fail "$1: pg_dumpall"
}
verify "after the rebuild"
scrub_is_clean "after the rebuild"
if [ -n "$BIN" ]; then
    transactions=$(query -c 'SELECT count(*) FROM pgbench_history')
    as_postgres "$BIN/pg_ctl" stop -s -w -m fast -D "$DIR/data" || fail "PostgreSQL does not stop"
    as_postgres "$BIN/pg_checksums" --check -D "$DIR/data" >"$WORK/checksums.log" 2>&1 \
        || { tail -20 "$WORK/checksums.log" >&2; fail "pg_checksums"; }
fi
cd /
unmount_pool
check_pool

# What was rebuilt has all: another is away.
losetup --detach "${devices[1]}"
mount_pool
if [ -n "$BIN" ]; then start_postgres; fi
verify "without another device"
if [ -n "$BIN" ]; then as_postgres "$BIN/pg_ctl" stop -s -w -m fast -D "$DIR/data"; fi
cd /
unmount_pool
check_pool
say "PASSED: $(cat "$WORK/tree.rounds") copies of $FILES files, $(sqlite_count) transactions of SQLite," \
    "${transactions:-no} of PostgreSQL, $(cat "$WORK/fsx.rounds" 2>/dev/null || echo no) rounds of fsx"
