#!/usr/bin/env bash
# fsx: random reads, writes, truncates, holes, allocations and mappings of one file, each read verified.
#
#   FSX_OPERATIONS   [20,000; full: 1,000,000]       FSX_SEED   [one of the day's]
. "$(dirname "$0")/lib.sh"
NAME=fsx
OPERATIONS=${FSX_OPERATIONS:-$(by_scale 20000 1000000)}
SEED=${FSX_SEED:-$(date +%Y%m%d)}
FSX=$(command -v "$ROOT/target/tools/bin/fsx" || command -v fsx || true)
[ -n "$FSX" ] || skip "fsx is not installed: cargo install fsx --version 0.3.2 --root target/tools"
PART=20000
begin fsx

cat >"$WORK/fsx.toml" <<'TOML'
flen = 4194304
# posix_fallocate of nothing is EINVAL, on every file system.
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
posix_fallocate = 1
punch_hole = 1
TOML
say "$OPERATIONS operations, from seed $SEED on"
# In parts: fsx never unmaps what it has mapped, and the kernel bounds the mappings of a process.
done=0
while [ "$done" -lt "$OPERATIONS" ]; do
    part=$((OPERATIONS - done < PART ? OPERATIONS - done : PART))
    "$FSX" -N "$part" -S "$SEED" -f "$WORK/fsx.toml" -P "$WORK" "$DIR/file" >"$WORK/fsx.log" 2>&1 \
        || { tail -40 "$WORK/fsx.log" >&2; fail "fsx found a difference: again with FSX_OPERATIONS=$part FSX_SEED=$SEED"; }
    done=$((done + part)) SEED=$((SEED + 1))
    [ $((done % (10 * PART))) != 0 ] || say "$done operations done"
done
finish
