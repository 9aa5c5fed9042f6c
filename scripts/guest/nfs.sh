#!/usr/bin/env bash
# The Linux kernel's NFSv3 client, in a guest, on a pool that `holdfast serve` has on the host: mounted by the line
# that `holdfast export list` prints; git, fsx, SQLite, rsync, a long listing, two mounts that do not share a cache,
# and a server that is killed under load and started again; then a check of the pool.
#
#   GUEST             a program that boots a guest with an NFS client and runs a command there [guest.sh of a folder
#                     shared/guest beside this project, if it is there; else skipped]. It is called as
#                       $GUEST --share DIR --server CMD --port N --mem SIZE --timeout SECONDS -- COMMAND...
#                     DIR is /host in the guest. CMD runs on the host's side of a network that only guest and host
#                     have, as root, with HOST_IP and GUEST_PORT set, and listens on N before COMMAND begins.
#                     Debian packages that the guest needs besides are in GUEST_EXTRA_PKGS.
#   GUEST_PARTS       which parts [mount git fsx sqlite rsync list rounds kills]
#   GUEST_FSX         operations [2,000; full: 100,000]      GUEST_TRANSACTIONS  of SQLite [100; full: 2,000]
#   GUEST_FILES       that are listed [2,000; full: 100,000] GUEST_ROUNDS        [50; full: 1,000]
#   GUEST_KILLS       [3; full: 20]                          GUEST_RSYNC         [/usr/sbin; full: /usr]
. "$(dirname "$0")/../mounted/lib.sh"
NAME=guest-nfs
[ "$(id -u)" = 0 ] || skip "a guest and its network need root"
GUEST_BESIDE=$ROOT/../shared/guest/guest.sh
if [ -z "${GUEST:-}" ]; then
    [ -x "$GUEST_BESIDE" ] \
        || skip "GUEST names no program that runs a command in a guest, and ../shared/guest/guest.sh is not there"
    GUEST=$GUEST_BESIDE
fi
find_program
export GUEST_EXTRA_PKGS=${GUEST_EXTRA_PKGS:-git rsync sqlite3 diffutils}
if [ "$GUEST" = "$GUEST_BESIDE" ]; then
    export GUEST_DIR=${GUEST_DIR:-$ROOT/target/guest}
    [ -d "$GUEST_DIR" ] || say "building the guest once, in $GUEST_DIR"
    "$GUEST" build || skip "the guest cannot be built: its Debian packages are not to be had"
fi
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-guest.XXXXXX")}
SHARE=$WORK/share
mkdir -p "$SHARE"
trap '[ -n "${KEEP:-}" ] || rm -rf "$WORK"' EXIT

PARTS=${GUEST_PARTS:-mount git fsx sqlite rsync list rounds kills}
FSX=$(command -v "$ROOT/target/tools/bin/fsx" || command -v fsx || true)
if [ -n "$FSX" ]; then
    cp "$FSX" "$SHARE/fsx"
else
    say "NOTE: fsx is not installed, its part is left out"
    PARTS=${PARTS/fsx/}
fi
git -C "$ROOT" bundle create -q "$SHARE/source.bundle" HEAD || fail "there is no repository of sources"
cp "$ROOT"/scripts/guest/client.* "$SHARE"
cat >"$SHARE/wanted" <<END
PARTS="$PARTS"
OPERATIONS=${GUEST_FSX:-$(by_scale 2000 100000)}
TRANSACTIONS=${GUEST_TRANSACTIONS:-$(by_scale 100 2000)}
FILES=${GUEST_FILES:-$(by_scale 2000 100000)}
ROUNDS=${GUEST_ROUNDS:-$(by_scale 50 1000)}
TREE=${GUEST_RSYNC:-$(by_scale /usr/sbin /usr)}
SEED=${GUEST_SEED:-$(date +%Y%m%d)}
END
"$HOLDFAST" create "$WORK/pool.hf" --size "$POOL_SIZE" >/dev/null

export WORK SHARE HOLDFAST GUEST_KILLS=${GUEST_KILLS:-$(by_scale 3 20)}
code=0
"$GUEST" --share "$SHARE" --server "exec bash $ROOT/scripts/guest/server.sh" --port 2049 --mem 1G \
    --timeout "$(by_scale 600 7200)" -- bash /host/client.sh || code=$?
[ ! -s "$WORK/failed" ] || fail "the server: $(cat "$WORK/failed")"
[ "$code" = 0 ] || { tail -20 "$WORK/log" >&2; fail "the guest ends with $code"; }
[ -e "$SHARE/ended" ] || fail "the pool was not closed"
say "PASSED: $PARTS"
