#!/usr/bin/env bash
# The portmapper of a server, asked by rpcinfo and showmount as they come with Debian, by TCP and by UDP, in a
# network of its own, where port 111 is free.
. "$(dirname "$0")/lib.sh"
NAME=portmap
need rpcinfo showmount unshare ip
if [ -z "${IN_ITS_NETWORK:-}" ]; then
    unshare -rn true 2>/dev/null || skip "there may be no network of its own"
    IN_ITS_NETWORK=1 exec unshare -rn "$0"
fi
ip link set lo up
find_program
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-portmap.XXXXXX")}
mkdir -p "$WORK"
SERVER=
trap 'kill -9 $SERVER 2>/dev/null || true; rm -rf "$WORK"' EXIT
export HOLDFAST_RUN_DIR=$WORK/run
HOST=127.0.0.1
"$HOLDFAST" create "$WORK/pool.hf" --size 1G >/dev/null
"$HOLDFAST" serve "$WORK/pool.hf" --nfs "$HOST:2049" --portmap "$HOST:111" --export /a:rw,to=$HOST/32 \
    --export /b/c:ro,to=10.0.0.0/8,to=$HOST/32 --state "$WORK/state" >"$WORK/told" 2>"$WORK/log" &
SERVER=$!
for _ in $(seq 100); do
    grep -q 'mount -t nfs' "$WORK/told" && break
    sleep 0.1
done

# says PATTERN COMMAND...: what the command prints has such a line.
says() {
    local pattern=$1 said
    shift
    said=$(timeout 20 "$@" 2>&1) || fail "$*: $said"
    grep -q "$pattern" <<<"$said" || fail "$* does not say '$pattern': $said"
}

says '100003 *3 *tcp *2049 *nfs' rpcinfo -p "$HOST"
says '100005 *3 *tcp *2049 *mountd' rpcinfo -p "$HOST"
says '100000 *2 *udp *111 *portmapper' rpcinfo -p "$HOST"
says '100000 *4 *udp *127.0.0.1.0.111 *portmapper' rpcinfo "$HOST"
says 'program 100003 version 3 ready' rpcinfo -t "$HOST" nfs 3
says 'program 100005 version 3 ready' rpcinfo -t "$HOST" mountd 3
says 'program 100000 version 2 ready' rpcinfo -u "$HOST" portmapper 2
! timeout 20 rpcinfo -t "$HOST" nfs 4 >/dev/null 2>&1 || fail "there is a version that is not there"
says '^/a *127.0.0.1/32$' showmount -e --no-headers "$HOST"
says '^/b/c *10.0.0.0/8,127.0.0.1/32$' showmount -e --no-headers "$HOST"
says '^$' showmount -a --no-headers "$HOST"
kill -TERM "$SERVER"
wait "$SERVER" || fail "the server did not close its pool"
say "PASSED"
