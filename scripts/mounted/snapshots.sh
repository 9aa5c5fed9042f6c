#!/usr/bin/env bash
# A part of /usr as a fileset, with hourly snapshots (the hours are seconds here) while it changes as a package manager changes
# it: files replaced by rename, some removed, some made, links and modes. One snapshot of an hour is taken when nothing changes and
# compared with what rsync copied then, one in the midst of the changes. `holdfast diff` of any two neighbours is held against
# what rsync says of the two, and the fileset is restored.
#
#   SNAPSHOTS_SOURCE  [/usr/bin; full: /usr]     SNAPSHOTS_HOURS  [3; full: 24]     SNAPSHOTS_CHANGES  of an hour [120; full: 3,000]
. "$(dirname "$0")/lib.sh"
NAME=snapshots
need rsync python3
begin_members snapshots
SOURCE=${SNAPSHOTS_SOURCE:-$(by_scale /usr/bin /usr)}
HOURS=${SNAPSHOTS_HOURS:-$(by_scale 3 24)}
CHANGES=${SNAPSHOTS_CHANGES:-$(by_scale 120 3000)}
FLAGS=-aH

"$HOLDFAST" create "$POOL" --size "$POOL_SIZE" >/dev/null
"$HOLDFAST" fileset create "$POOL:usr" >/dev/null
timeout 120 "$HOLDFAST" mount "$POOL:usr" "$MOUNT" --daemon >/dev/null || fail "the fileset cannot be mounted"
rsync "$FLAGS" --one-file-system --exclude "$WORK" "$SOURCE/" "$MOUNT/"
say "$(find "$MOUNT" | wc -l) names, $(du -sh --apparent-size "$MOUNT" | cut -f1)"

# What a package manager does: new versions by rename, some files gone, some new, a directory moved, modes and links.
change() {
    python3 - "$MOUNT" "$CHANGES" "$1" <<'PYTHON'
import os, random, stat, sys
top, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
files, directories = [], []
for path, below, names in os.walk(top):
    below.sort()
    directories.append(path)
    files += [os.path.join(path, name) for name in sorted(names)]
files = [path for path in files if stat.S_ISREG(os.lstat(path).st_mode)]
for number in range(count):
    path = chance.choice(files)
    if not os.path.lexists(path):
        continue
    kind = chance.randrange(10)
    if kind < 4:
        mode = os.lstat(path).st_mode & 0o7777
        with open(path + ".dpkg-new", "wb") as file:
            file.write(chance.randbytes(chance.randrange(1, 60_000)))
            os.fchmod(file.fileno(), mode)
        os.rename(path + ".dpkg-new", path)
    elif kind < 6:
        os.unlink(path)
    elif kind == 6:
        with open(path, "r+b") as file:
            file.seek(chance.randrange(0, 1 + os.lstat(path).st_size))
            file.write(chance.randbytes(5_000))
    elif kind == 7:
        os.chmod(path, 0o600 | chance.randrange(0o100))
    elif kind == 8:
        os.symlink(os.path.basename(path), f"{path}.link-{seed}-{number}")
    else:
        place = os.path.join(chance.choice(directories), f"made-{seed}-{number}")
        os.mkdir(place)
        with open(os.path.join(place, "file"), "wb") as file:
            file.write(chance.randbytes(chance.randrange(40_000)))
PYTHON
}

# Names that rsync would send, delete or make to bring $2 to what $1 is, one a line; not those whose only change is that another
# name of the same file has gone. Times of directories are not told: a
# directory has changed where a name in it has.
by_rsync() {
    rsync -a -c -n -i --delete "$1/" "$2/" \
        | sed -n 's/^\*deleting *//p; s/^\.d..t\.* .*//; s/^[<>ch.][fdLDS][^ ]* //p' \
        | sed 's/ -> .*//; s/ => .*//; s,/$,,; s,^\./*$,,' | grep -v '^$' | LC_ALL=C sort -u
}

# The same, of what `holdfast diff` tells of two snapshots. A directory that is only modified has other names in
# it, which are told. A file with several names is told once.
by_diff() {
    "$HOLDFAST" diff "$POOL:usr@$1" "$POOL:usr@$2" --json | python3 -c '
import json, os, sys
before, after = sys.argv[1:]
told, names = set(), {}
for path, _, files in os.walk(after):
    for it in (os.path.join(path, name) for name in files):
        names.setdefault(os.lstat(it).st_ino, []).append(os.path.relpath(it, after))
for line in sys.stdin:
    fact = json.loads(line)
    path = fact["path"].strip("/")
    here, there = os.path.join(before, path), os.path.join(after, path)
    if fact["became"] == "modified" and all(os.path.isdir(it) and not os.path.islink(it) for it in (here, there)):
        one, other = os.lstat(here), os.lstat(there)
        if (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid):
            continue
    told.add(path)
    if fact["became"] == "modified" and os.path.lexists(there):
        told.update(names.get(os.lstat(there).st_ino, []))
    if fact.get("from"):
        told.add(fact["from"].strip("/"))
print("\n".join(sorted(it for it in told if it)))' "$MOUNT/.snapshots/$1" "$MOUNT/.snapshots/$2" | LC_ALL=C sort -u | grep -v '^$'
}

copied() { rsync "$FLAGS" "$MOUNT/" "$WORK/copy-$1/"; }
is_same() {
    rsync "$FLAGS" -c -n -i --delete "$1/" "$2/" >"$WORK/differences"
    [ ! -s "$WORK/differences" ] || { head -20 "$WORK/differences" >&2; fail "$3"; }
}

took=0 snapshots=()
take() {
    local begun=${EPOCHREALTIME/./}
    "$HOLDFAST" snapshot create "$POOL:usr@$1" >/dev/null || fail "the snapshot $1 is not taken"
    took=$((took + ${EPOCHREALTIME/./} - begun))
    snapshots+=("$1")
}
for ((hour = 0; hour <= HOURS; hour++)); do
    copied "h$hour"
    take "h$hour"
    # The next hour begins while the snapshot is compared: nothing of it may be in the snapshot.
    change "$hour" & changing=$!
    is_same "$WORK/copy-h$hour" "$MOUNT/.snapshots/h$hour" "the snapshot h$hour is not what was copied before it"
    wait "$changing" || fail "the changes beside the comparison"
    change "9$hour" & changing=$!
    sleep 0.05
    take "m$hour"
    wait "$changing" || fail "the changes beside a snapshot"
done
say "${#snapshots[@]} snapshots, $((took / ${#snapshots[@]} / 1000)) ms a command; each is what was copied before it"

told=0
for ((at = 1; at < ${#snapshots[@]}; at++)); do
    before=${snapshots[at - 1]} after=${snapshots[at]}
    by_rsync "$MOUNT/.snapshots/$after" "$MOUNT/.snapshots/$before" >"$WORK/rsync"
    by_diff "$before" "$after" >"$WORK/diff"
    diff "$WORK/rsync" "$WORK/diff" >"$WORK/differences" \
        || { head -20 "$WORK/differences" >&2; fail "from $before to $after rsync (<) and diff (>) tell otherwise"; }
    told=$((told + $(wc -l <"$WORK/diff")))
done
[ "$told" -gt $((HOURS * CHANGES)) ] || fail "$told names of $((2 * HOURS * CHANGES)) changes"
say "diff tells the $told names that rsync does"

umount "$MOUNT"
"$HOLDFAST" fileset restore "$POOL:usr@h1" >/dev/null 2>"$WORK/refused" \
    || fail "it is not restored: $(cat "$WORK/refused")"
timeout 120 "$HOLDFAST" mount "$POOL:usr" "$MOUNT" --daemon >/dev/null || fail "the fileset cannot be mounted again"
is_same "$WORK/copy-h1" "$MOUNT" "what was restored is not the snapshot h1"
change 777
is_same "$WORK/copy-h1" "$MOUNT/.snapshots/h1" "the snapshot h1 has changed with the fileset"
umount "$MOUNT"
# The youngest first: those behind h1 are of the line that was restored away.
for ((at = ${#snapshots[@]} - 1; at > 1; at--)); do
    [ "${snapshots[at]}" = h1 ] && break
    "$HOLDFAST" snapshot delete "$POOL:usr@${snapshots[at]}" --wait >/dev/null 2>&1 || fail "the snapshot ${snapshots[at]} stays"
done
check_pool
say "PASSED: restored, the later snapshots deleted, the check is clean"
