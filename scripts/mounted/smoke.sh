#!/usr/bin/env bash
# The everyday tools on a small tree, each followed by a check of the pool: copied, packed, listed,
# moved, removed, and the same after each remount.
#
#   SMOKE_SOURCE   a directory to copy [the crates of this project; full: /usr/include]
. "$(dirname "$0")/lib.sh"
NAME=smoke
need tar diff
SOURCE=${SMOKE_SOURCE:-$(by_scale "$ROOT/crates" /usr/include)}
begin smoke

# What a listing shows of a tree, without the times of access.
list() { (cd "$1" && find . -printf '%P %y %#m %n %s %T@ %l\n' | LC_ALL=C sort); }

free_bytes() { df --output=avail -B1 "$DIR" | tail -n 1; }

before=$(free_bytes)
cp -a "$SOURCE" "$DIR/copy"
diff -r --no-dereference "$SOURCE" "$DIR/copy" || fail "the copy differs"
list "$DIR/copy" >"$WORK/list"
cycle_pool
diff -r --no-dereference "$SOURCE" "$DIR/copy" || fail "the copy differs after a remount"
list "$DIR/copy" | diff "$WORK/list" - || fail "names or attributes differ after a remount"
say "copied $(wc -l <"$WORK/list") names"

tar -cf "$DIR/all.tar" -C "$DIR/copy" .
mkdir "$DIR/unpacked"
tar -xpf "$DIR/all.tar" -C "$DIR/unpacked"
cycle_pool
diff -r --no-dereference "$DIR/copy" "$DIR/unpacked" || fail "what tar unpacked differs"

# Moved within, linked, cut, grown, with holes.
mv "$DIR/unpacked" "$DIR/moved"
cp -al "$DIR/moved" "$DIR/linked"
diff -r --no-dereference "$DIR/copy" "$DIR/linked" || fail "the links differ"
truncate -s 1T "$DIR/hole"
printf end | dd of="$DIR/hole" bs=1 seek=1G conv=notrunc status=none
truncate -s $(((1 << 30) + 3)) "$DIR/hole"
cycle_pool
[ "$(tail -c 3 "$DIR/hole")" = end ] || fail "the end of a file with a hole is lost"
[ "$(head -c 65536 "$DIR/hole" | tr -d '\0' | wc -c)" = 0 ] || fail "a hole has content"
[ "$(stat -c %b "$DIR/hole")" -lt 1024 ] || fail "a hole takes space"
[ "$(stat -c %s "$DIR/hole")" = $(((1 << 30) + 3)) ] || fail "the size is not as set"

# One directory with many names, listed by ls and by stat of each.
mkdir "$DIR/big"
(cd "$DIR/big" && seq 5000 | xargs touch)
[ "$(ls -f "$DIR/big" | wc -l)" = 5002 ] || fail "ls -f misses names"
[ "$(ls -l "$DIR/big" | wc -l)" = 5001 ] || fail "ls -l misses names"

rm -rf "${DIR:?}"/*
[ -z "$(ls -A "$DIR")" ] || fail "something stays after rm -rf"
cycle_pool
after=$(free_bytes)
[ "$after" -ge $((before - (8 << 20))) ] || fail "$((before - after)) bytes do not come back"
finish
