#!/usr/bin/env bash
# A repository of real sources: committed, cloned, verified by git and compared file by file.
#
#   GIT_SOURCE   a directory of sources [part of the Rust toolchain's or of cargo's registry]
. "$(dirname "$0")/lib.sh"
NAME=git
need git diff rustc

SYSROOT=$(rustc --print sysroot)
find_source() {
    local candidate
    for candidate in "${GIT_SOURCE:-}" "$SYSROOT/lib/rustlib/src" \
        "$(by_scale "$HOME/.cargo/registry/src" "$SYSROOT/share")" "$ROOT/crates"; do
        if [ -n "$candidate" ] && [ -d "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
}
SOURCE=$(find_source)
begin git
say "sources: $SOURCE ($(du -sh "$SOURCE" | cut -f1))"

git_() { git -c user.name=test -c user.email=test@example.invalid -c gc.auto=0 "$@"; }
git_ init -q "$DIR/repo"
cp -a "$SOURCE/." "$DIR/repo/"
# Sources that are repositories themselves, or that ignore files, must not hide anything.
find "$DIR/repo" -mindepth 2 -name .git -prune -exec rm -rf {} +
git_ -C "$DIR/repo" add -A -f
git_ -C "$DIR/repo" commit -q -m everything
say "committed $(git_ -C "$DIR/repo" ls-files | wc -l) files"
git_ clone -q --no-hardlinks "$DIR/repo" "$DIR/clone"
cycle_pool
git_ -C "$DIR/clone" fsck --full --strict
[ -z "$(git_ -C "$DIR/clone" status --porcelain)" ] || fail "the clone is not as committed"
diff -r --no-dereference -x .git "$DIR/repo" "$DIR/clone" || fail "the clone differs"
git_ -C "$DIR/clone" repack -q -a -d
git_ -C "$DIR/clone" fsck --full
finish
