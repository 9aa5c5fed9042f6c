#!/bin/bash
# The guest's side of nfs.sh. Everything is in /host; /mnt/a and /mnt/b are the same export.
set -euo pipefail
. /host/wanted
fail() { echo "guest: FAILED: $*"; exit 1; }
said() { printf 'guest: %s (%s s)\n' "$1" "$((SECONDS - begun))"; }
waited() { # FILE SECONDS
    local n
    for ((n = 0; n < $2 * 5; n++)); do
        [ ! -e "/host/$1" ] || return 0
        [ ! -e /host/failed ] || fail "the server, while the guest waits for $1"
        sleep 0.2
    done
    fail "no $1 after $2 s"
}

A=/mnt/a B=/mnt/b
mkdir -p $A $B
waited line 30
LINE=$(cat /host/line)
# mounts DIRECTORY [OPTIONS]: by the line that the server prints.
mounts() {
    local line=${LINE/DIRECTORY/$1}
    ${line/-o /-o ${2:+$2,}} || fail "cannot mount by: $line"
}
again() { cd /; umount $A || fail "$A is in use"; mounts $A; }
export HOME=/root
git() { command git -c user.name=test -c user.email=test@example.invalid -c safe.directory='*' \
    -c advice.detachedHead=false "$@"; }

part_mount() {
    echo "guest: $(uname -sr): $LINE"
    grep " $A " /proc/mounts
    rpcinfo -p "$HOST_IP" >/tmp/rpcinfo || fail "rpcinfo"
    grep -q '100003 *3 *tcp *2049 *nfs' /tmp/rpcinfo || fail "rpcinfo lists no NFS: $(cat /tmp/rpcinfo)"
    grep -q '100005 *3 *tcp *2049 *mountd' /tmp/rpcinfo || fail "rpcinfo lists no MOUNT: $(cat /tmp/rpcinfo)"
    rpcinfo -t "$HOST_IP" nfs 3 && rpcinfo -t "$HOST_IP" mountd 3 || fail "a program does not answer"
    showmount -e --no-headers "$HOST_IP" | grep '^/a ' || fail "showmount does not show the export"
    showmount -a --no-headers "$HOST_IP" | grep ':/a' || fail "showmount does not show the mount"
}

part_git() {
    git clone -q /host/source.bundle $A/repo
    again
    git -C $A/repo fsck --full --strict --no-progress
    [ -z "$(git -C $A/repo status --porcelain)" ] || fail "the clone is not as committed"
    git clone -q --no-hardlinks $A/repo $A/clone
    git -C $A/clone fsck --full --no-progress
    diff -r -x .git $A/repo $A/clone || fail "the clone differs"
    said "git: cloned twice, $(git -C $A/repo ls-files | wc -l) files, fsck clean"
}

part_fsx() {
    cat >/tmp/fsx.toml <<'TOML'
flen = 4194304
# NFSv3 has no holes and no allocation.
[opsize]
min = 1
max = 262144
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 5
invalidate = 1
fsync = 0.2
fdatasync = 0.2
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
posix_fallocate = 0
punch_hole = 0
TOML
    local done=0 part
    while [ "$done" -lt "$OPERATIONS" ]; do
        part=$((OPERATIONS - done < 20000 ? OPERATIONS - done : 20000))
        /host/fsx -N "$part" -S $((SEED + done)) -f /tmp/fsx.toml -P /tmp $A/fsx >/tmp/fsx.log 2>&1 \
            || { tail -40 /tmp/fsx.log; fail "fsx found a difference, seed $((SEED + done))"; }
        done=$((done + part))
    done
    said "fsx: $OPERATIONS operations"
}

part_sqlite() {
    local db=$A/test.db mode
    for mode in delete truncate persist; do
        {
            echo "PRAGMA journal_mode=$mode; PRAGMA synchronous=EXTRA; CREATE TABLE IF NOT EXISTS t (id INTEGER, x);"
            for ((n = 0; n < TRANSACTIONS; n++)); do
                echo "BEGIN; INSERT INTO t VALUES ($n, hex(randomblob(200))); COMMIT;"
            done
        } | sqlite3 -bail $db >/dev/null || fail "SQLite, $mode"
    done
    again
    [ "$(sqlite3 $db 'PRAGMA integrity_check')" = ok ] || fail "SQLite: corrupt"
    [ "$(sqlite3 $db 'SELECT count(*) FROM t')" = $((TRANSACTIONS * 3)) ] || fail "SQLite: not all rows are there"
    said "SQLite: $((TRANSACTIONS * 3)) transactions"
}

part_rsync() {
    local skip=(--one-file-system --exclude=/proc --exclude=/sys --exclude=/dev)
    rsync -aH "${skip[@]}" "$TREE/" $A/tree/
    again
    rsync -aH -c -n -i --delete "${skip[@]}" "$TREE/" $A/tree/ >/tmp/differs
    [ ! -s /tmp/differs ] || { head -20 /tmp/differs; fail "rsync sees differences"; }
    diff -r --no-dereference "$TREE" $A/tree || fail "the copy differs"
    said "rsync: $(find $A/tree | wc -l) names of $TREE, $(du -sh --apparent-size $A/tree | cut -f1), byte by byte"
}

part_list() {
    python3 /host/client.py many $A/many "$FILES"
    again
    ls -lR $A/many >/tmp/listed || fail "ls -lR"
    [ "$(grep -c '^-' /tmp/listed)" = "$FILES" ] || fail "ls -lR shows $(grep -c '^-' /tmp/listed) of $FILES files"
    [ "$(awk '/^-/ { print $NF }' /tmp/listed | sort -u | wc -l)" = "$FILES" ] || fail "ls -lR shows a name twice"
    said "list: $FILES files"
}

part_rounds() {
    umount $A
    mounts $A nosharecache
    mounts $B nosharecache
    mkdir $A/rounds
    python3 /host/client.py rounds $A/rounds $B/rounds "$ROUNDS" "$SEED" || fail "one mount does not see the other"
    umount $B
    said "rounds: $ROUNDS of two mounts, each seen by the other after close and open"
}

part_kills() {
    mkdir $A/load
    python3 /host/client.py load $A/load /tmp/model /host "$SEED" || fail "the load"
    again
    python3 /host/client.py verify $A/load /tmp/model || fail "not everything is there"
    said "kills: $(cat /tmp/model/sum)"
}

mounts $A
for part in $PARTS; do
    begun=$SECONDS
    "part_$part"
done
cd /
umount $A
dmesg | grep -i 'nfs.*\(stale\|bad\|corrupt\|error\)' && fail "the kernel complains"
: >/host/end
waited ended 120
