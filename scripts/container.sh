#!/usr/bin/env bash
# Tests packaging/Dockerfile as far as that can be done without a registry of images: what it names
# is there, and the program serves, and takes over mounts, in a root directory of its own with
# /dev/fuse, the libraries that it needs, and the capabilities that a container has by default.
# Exits 77 where it cannot run here, and says why.
#
#   scripts/container.sh [PROGRAM]       PROGRAM: target/debug/holdfast, built if it is not given
set -euo pipefail
cd "$(dirname "$0")/.."
FILE=packaging/Dockerfile
# What docker(1) gives a container; it may not mount.
CAPABILITIES=chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw
CAPABILITIES=$CAPABILITIES,sys_chroot,mknod,audit_write,setfcap

wrong() {
    echo "$FILE: $*" >&2
    exit 1
}
channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
grep -q "^FROM rust:$channel-slim-" $FILE || wrong "it builds with another Rust than $channel"
[ "$(sed -n 's/^FROM rust:.*-slim-\([a-z]*\) AS build$/\1/p' $FILE)" = \
    "$(sed -n 's/^FROM debian:\([a-z]*\)-slim$/\1/p' $FILE)" ] ||
    wrong "it builds for another release than it runs on"
grep -q '^name = "holdfast"$' crates/cli/Cargo.toml || wrong "cli makes no program holdfast"
grep -qx '/\?target' .dockerignore || wrong ".dockerignore lets the folder target in"
entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' $FILE)
grep -q "^COPY --from=build .*/holdfast $entry\$" $FILE || wrong "nothing is copied to $entry"
command=$(sed -n 's/^CMD \[\(.*\)\]$/\1/p' $FILE | tr -d '",')
[ "${command%% *}" = serve ] || wrong "it serves nothing: $command"

skip() {
    echo "SKIPPED: no container is tried: $*" >&2
    exit 77
}
[ "$(id -u)" = 0 ] || skip "only root can"
{ : <>/dev/fuse; } 2>/dev/null || skip "/dev/fuse cannot be opened"
unshare --mount --pid --fork true 2>/dev/null || skip "there are no namespaces"
program=${1:-}
if [ -z "$program" ]; then
    cargo build -q -p cli
    program=target/debug/holdfast
fi
program=$(realpath "$program")
place=$(mktemp -d)
server=
# unshare(1) waits for the program, and ends with it.
stop() {
    pkill -TERM -P "$server" || true
    wait "$server" || true
}
finish() {
    umount -l "$place/mnt" 2>/dev/null || true
    [ -z "$server" ] || stop
    rm -rf "$place"
}
trap finish EXIT
root=$place/root
mkdir -p "$place/srv" "$place/run" "$place/mnt" "$root/etc/holdfast" "$root/dev" "$root/proc" \
    "$root/tmp" "$root/var/lib/holdfast" "$root/$place/srv" "$root/$place/run" \
    "$(dirname "$root/$entry")"
chmod 700 "$place/run"
cp "$program" "$root/$entry"
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root/$(dirname "$library")"
    cp -L "$library" "$root/$library"
done
touch "$root/dev/fuse" "$root/dev/null" "$root/dev/urandom"
export HOLDFAST_RUN_DIR=$place/run
"$program" create "$place/srv/pool.hf" --size 256M >/dev/null
cat >"$root/etc/holdfast/holdfast.toml" <<TOML
nfs = "127.0.0.1:0"
state = "/var/lib/holdfast"
[[pool]]
path = "$place/srv/pool.hf"
TOML
cat >"$place/inside" <<'INSIDE'
set -eu
place=$1 root=$1/root entry=$2 capabilities=$3
shift 3
for path in /dev/fuse /dev/null /dev/urandom "$place/srv" "$place/run"; do
    mount --bind "$path" "$root/$path"
done
mount -t proc proc "$root/proc"
exec setpriv --bounding-set "-all,+${capabilities//,/,+}" --inh-caps=-all \
    chroot "$root" "$entry" "$@"
INSIDE
# shellcheck disable=SC2086
unshare --mount --pid --fork bash "$place/inside" "$place" "$entry" \
    "$CAPABILITIES" $command >"$place/said" 2>"$place/log" &
server=$!
for _ in $(seq 300); do
    [ ! -s "$place/said" ] || break
    kill -0 "$server" 2>/dev/null || { cat "$place/log"; exit 1; }
    sleep 0.1
done
pool=$place/srv/pool.hf
"$program" fileset create "$pool:home" >/dev/null
"$program" mount "$pool:home" "$place/mnt" >/dev/null
head -c 3000000 /dev/urandom >"$place/bytes"
cp "$place/bytes" "$place/mnt/bytes"
mkdir "$place/mnt/directory"
cmp "$place/bytes" "$place/mnt/bytes"
"$program" unmount "$place/mnt" >/dev/null
"$program" mount "$pool:home" "$place/mnt" >/dev/null
cmp "$place/bytes" "$place/mnt/bytes"
"$program" unmount "$place/mnt" >/dev/null
stop
server=
"$program" check "$pool" >/dev/null
echo "packaging/Dockerfile: its program serves and takes over mounts with /dev/fuse alone"
