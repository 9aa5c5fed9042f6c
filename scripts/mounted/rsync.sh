#!/usr/bin/env bash
# A tree of real files, copied with all that rsync keeps and compared byte by byte.
#
#   RSYNC_SOURCE   [/usr/lib/x86_64-linux-gnu or so in part; full: /usr]
#   RSYNC_FLAGS    [-aHAX; without A and X, loudly, where extended attributes are missing]
. "$(dirname "$0")/lib.sh"
NAME=rsync
need rsync cmp setfattr
SOURCE=${RSYNC_SOURCE:-$(by_scale /usr/bin /usr)}
begin rsync

if [ -z "${RSYNC_FLAGS:-}" ]; then
    RSYNC_FLAGS=-aHAX
    : >"$DIR/probe"
    if ! setfattr -n user.probe -v 1 "$DIR/probe" 2>/dev/null; then
        RSYNC_FLAGS=-aH
        say "NOTE: extended attributes are missing here: ACLs and attributes are not compared"
    fi
    rm "$DIR/probe"
fi
# The pool or the target may be inside the source.
EXCLUDES=(--one-file-system --exclude "$WORK" --exclude "$DIR")
rsync "$RSYNC_FLAGS" "${EXCLUDES[@]}" "$SOURCE/" "$DIR/copy/"
say "copied $(find "$DIR/copy" | wc -l) names, $(du -sh --apparent-size "$DIR/copy" | cut -f1)"
cycle_pool

# By content (-c) and by every attribute; then once more without rsync's own reading.
rsync "$RSYNC_FLAGS" -c -n -i --delete "${EXCLUDES[@]}" "$SOURCE/" "$DIR/copy/" >"$WORK/differences"
[ ! -s "$WORK/differences" ] || { head -20 "$WORK/differences" >&2; fail "rsync sees differences"; }
list() {
    (cd "$1" && find . -xdev ! -type d -printf '%P %y %#m %U %G %s %T@ %l\n' -o -printf '%P %y %#m %U %G %T@\n' \
        | LC_ALL=C sort)
    # Names that are one file; some of its names may lie outside.
    (cd "$1" && find . -xdev -type f -links +1 -printf '%i %P\n' | LC_ALL=C sort \
        | awk '$1 == last { names = names " = " substr($0, length($1) + 2); many = 1; next }
               { if (many) print names; last = $1; names = substr($0, length($1) + 2); many = 0 }
               END { if (many) print names }' | LC_ALL=C sort)
}
list "$SOURCE" >"$WORK/before"
list "$DIR/copy" >"$WORK/after"
diff "$WORK/before" "$WORK/after" | head -20 >"$WORK/differences" || true
[ ! -s "$WORK/differences" ] || { cat "$WORK/differences" >&2; fail "attributes differ"; }
count=0
while IFS= read -r -d '' file; do
    cmp -s "$SOURCE/$file" "$DIR/copy/$file" || fail "$file differs"
    count=$((count + 1))
done < <(cd "$DIR/copy" && find . -type f -print0)
say "compared $count files byte by byte ($RSYNC_FLAGS)"
finish
