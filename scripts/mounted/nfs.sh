#!/usr/bin/env bash
# NFS by libnfs, a client of another house: a tree of files copied in and out, listed and read, found by the
# portmapper too, over a server that is killed in between; then a check of the pool.
. "$(dirname "$0")/lib.sh"
NAME=nfs
need nfs-ls nfs-cp nfs-cat cmp
find_program
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-nfs.XXXXXX")}
mkdir -p "$WORK"
SERVER=
trap 'kill -9 $SERVER 2>/dev/null || true; rm -rf "$WORK"' EXIT
POOL=$WORK/pool.hf
"$HOLDFAST" create "$POOL" --size 1G >/dev/null

# Serves the pool at a free port, or at the one of the last life.
serve() {
    : >"$WORK/told"
    "$HOLDFAST" serve "$POOL" --nfs "127.0.0.1:${PORT:-0}" --export /a:rw,squash=none,insecure \
        >"$WORK/told" 2>>"$WORK/log" &
    SERVER=$!
    for _ in $(seq 100); do
        grep -q 'mount -t nfs' "$WORK/told" && break
        sleep 0.1
    done
    PORT=$(sed -n 's/.*,port=\([0-9]*\),.*/\1/p' "$WORK/told")
    [ -n "$PORT" ] || fail "the server does not answer: $(cat "$WORK/log")"
}

url() { echo "nfs://127.0.0.1/a/$1?nfsport=$PORT&mountport=$PORT"; }

serve
count=$(by_scale 20 200)
for number in $(seq "$count"); do
    head -c $((number * number * 1000)) /dev/urandom >"$WORK/in$number"
    nfs-cp "$WORK/in$number" "$(url "f$number")" >/dev/null || fail "f$number is not copied"
done
[ "$(nfs-ls "$(url '')" | grep -c ' f[0-9]*$')" = "$count" ] || fail "not all names are listed"
kill -9 "$SERVER"; wait "$SERVER" 2>/dev/null || true
serve
for number in $(seq "$count"); do
    nfs-cat "$(url "f$number")" | cmp - "$WORK/in$number" || fail "f$number differs after the server died"
done
kill -TERM "$SERVER"
wait "$SERVER" || fail "the server did not close its pool"
"$HOLDFAST" check "$POOL" >"$WORK/check" 2>&1 || fail "the pool is damaged: $(cat "$WORK/check")"
say "copied $count files in and out, and the server died once"
