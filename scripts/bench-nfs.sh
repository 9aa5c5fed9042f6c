#!/usr/bin/env bash
# Measures the server of NFS beside nfs-ganesha on ext4 and beside a server that keeps nothing, on loop devices of one
# disk, in the same run and in turns: by calls of a client of its own over loopback, and by the Linux kernel's client
# in a guest. Ganesha answers a change of names before it is durable: so does `async`, the export of Holdfast that is
# called so; on an ext4 mounted with `dirsync` Ganesha makes names durable as well.
# Prints medians and the median of the ratios of a round, with the least and the greatest.
#
#   scripts/bench-nfs.sh [calls|guest]...    calls, and guest if GUEST is set
#
#   GUEST       a program that runs a command in a guest, as scripts/guest/nfs.sh has it
#   CALLS       [100000]   GETATTRs of a client; a tenth as many creates, writes and files
#   FILES       [1000]     files that the kernel's client makes, writes and removes in a round
#   STREAM_MIB  [256]      what a stream moves
#   DEVICE_MIB  [2048]     each of three devices, which are written in full before
#   ROUNDS      [6]
#   PLACE, HOLDFAST    as scripts/bench-lib.sh has them
#
# Needs root, and the programs of `cargo build --release -p cli -p benches`.
NAME=bench-nfs
# shellcheck source=scripts/bench-lib.sh
. "$(dirname "$0")/bench-lib.sh"
CALLS=${CALLS:-100000} FILES=${FILES:-1000} STREAM_MIB=${STREAM_MIB:-256} ROUNDS=${ROUNDS:-6}
DEVICE_MIB=${DEVICE_MIB:-2048}
BINS=$(dirname "$HOLDFAST")
for program in nfs-calls null-server; do
    [ -x "$BINS/$program" ] || fail "no $BINS/$program: run cargo build --release -p benches"
done
begin_bench ganesha.nfsd=nfs-ganesha /usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so=nfs-ganesha-vfs \
    rpcbind=rpcbind mkfs.ext4=e2fsprogs
export place HOLDFAST BINS ROUNDS FILES STREAM_MIB

leave() {
    local code=$?
    set +e
    ! mountpoint -q "$dirsync" || umount "$dirsync"
    (exit "$code")
    clean_up
}
# full FILE: makes a device on a file that has all its blocks: else a flush would wait for the disk's file system, too.
full() {
    attach "$1" "${DEVICE_MIB}M"
    dd if=/dev/zero of="$1" bs=1M count="$DEVICE_MIB" conv=notrunc,fsync status=none
}
full "$place/pool.img"
pool=$loop
full "$place/ext4.img"
mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0 "$loop"
mount "$loop" "$peer"
dirsync=$place/dirsync
full "$place/dirsync.img"
mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0 "$loop"
mkdir "$dirsync"
mount -o dirsync "$loop" "$dirsync"
trap leave EXIT
"$HOLDFAST" create "$pool" --force >/dev/null
export pool peer dirsync
cat >"$place/ganesha.conf" <<END
NFS_CORE_PARAM { NFS_Protocols = 3; NFS_Port = 2050; MNT_Port = 2051; Enable_NLM = false; Enable_RQUOTA = false; }
EXPORT_DEFAULTS { Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; Protocols = 3; }
EXPORT { Export_Id = 1; Path = $peer; Pseudo = /plain; FSAL { Name = VFS; } }
EXPORT { Export_Id = 2; Path = $dirsync; Pseudo = /dirsync; FSAL { Name = VFS; } }
LOG { Default_Log_Level = WARN; }
END

# Runs in a network and with mounts of its own: Ganesha wants a portmapper, which wants /run.
cat >"$place/servers.sh" <<'END'
set -e
mount -t tmpfs none /run
mkdir -p /run/rpcbind
rpcbind -i
"$HOLDFAST" serve "$pool" --nfs 0.0.0.0:2049 --export /sync:rw,to=0.0.0.0/0,squash=none,insecure \
    --export /async:rw,to=0.0.0.0/0,squash=none,insecure,async \
    --state "$place/state" >"$place/holdfast.log" 2>&1 &
"$BINS/null-server" --nfs 0.0.0.0:2052 >"$place/null.log" 2>&1 &
ganesha.nfsd -F -L "$place/ganesha.log" -f "$place/ganesha.conf" -p "$place/ganesha.pid" &
while sleep 0.1; do
    [ ! -e "$place/share/cold" ] || { sync; echo 3 >/proc/sys/vm/drop_caches; rm "$place/share/cold"; }
done
END
mkdir "$place/share"

# each COUNT WHAT CLIENTS WINDOW: what it takes each server, in turns. One that makes each name durable by itself
# takes so long that it has part only where one call is on its way.
each() {
    local count=$1 what=$2 clients=$3 window=$4 who target rate
    for who in holdfast ganesha dirsync async null; do
        [ "$who" != dirsync ] || [ "$window" = 1 ] || continue
        case $who in
            holdfast) target=127.0.0.1:2049:2049:/sync ;;
            async) target=127.0.0.1:2049:2049:/async ;;
            ganesha) target=127.0.0.1:2050:2051:$peer ;;
            dirsync) target=127.0.0.1:2050:2051:$dirsync ;;
            null) target=127.0.0.1:2052:2052:/ ;;
        esac
        rate=$("$BINS/nfs-calls" "$what" "$clients" "$window" "$count" "$target" | sed -n 's/.*: \([0-9]*\) .*/\1/p')
        note "$what, $clients x $window" "$who" $((count * clients * 1000000 / rate))
    done
}
calls_in_network() {
    local round port
    ip link set lo up
    bash "$place/servers.sh" &
    for port in 2049 2051 2052; do
        until (exec 9<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
    done
    for ((round = 0; round < ROUNDS; round++)); do
        each "$CALLS" getattr 1 16
        each $((CALLS / 10)) create 1 16
        each $((CALLS / 10)) write 1 16
        each $((CALLS / 10)) files 1 16
        each $((CALLS / 200)) create 1 1
        each $((CALLS / 200)) files 1 1
        each $((CALLS / 40)) files 8 4
    done
}
calls() {
    section=calls
    export CALLS section
    export -f calls_in_network each note
    unshare -nmp --fork --kill-child bash -euc calls_in_network || fail "the calls"
    compare holdfast ganesha
    compare holdfast dirsync
    compare async ganesha
    compare holdfast null
}
guest() {
    [ -n "${GUEST:-}" ] || fail "GUEST names no program that runs a command in a guest"
    section=guest
    cp "$ROOT/scripts/guest/bench.py" "$place/share"
    "$GUEST" --share "$place/share" --server "exec bash $place/servers.sh" --port 2051 --mem 1G --timeout 3600 \
        -- env FILES="$FILES" STREAM_MIB="$STREAM_MIB" ROUNDS="$ROUNDS" PLAIN="$peer" DIRSYNC="$dirsync" \
        python3 /host/bench.py \
        || fail "the guest"
    mv "$place/share/times" "$place/guest.times"
    compare holdfast ganesha
    compare holdfast dirsync
    compare async ganesha
    compare holdfast null
}

if [ $# -eq 0 ]; then
    set -- calls
    [ -z "${GUEST:-}" ] || set -- calls guest
fi
for part in "$@"; do
    case $part in
        calls) calls ;;
        guest) guest ;;
        *) fail "there is no $part: calls or guest" ;;
    esac
done
