#!/usr/bin/env bash
# A stream written by fio, each block with its own checksum, and read back after a remount.
#
#   FIO_SIZE   [256M; full: 4G]
. "$(dirname "$0")/lib.sh"
NAME=fio
need fio
SIZE=${FIO_SIZE:-$(by_scale 256M 4G)}
begin fio

# fio_run NAME OPTIONS...
fio_run() {
    local job=$1
    shift
    # Its state files go where it runs.
    cd "$WORK"
    fio --name="$job" --filename="$DIR/$job" --size="$SIZE" --verify=crc32c --verify_fatal=1 \
        --randseed=4711 --allow_file_create=1 --end_fsync=1 --fallocate=none --group_reporting \
        "$@" >"$WORK/fio.log" 2>&1 || { tail -40 "$WORK/fio.log" >&2; fail "fio: $job $*"; }
}
STREAM=(--rw=write --bs=1M --ioengine=psync)
RANDOM_=(--rw=randwrite --bs=16k --ioengine=psync)
fio_run stream "${STREAM[@]}" --do_verify=0
fio_run random "${RANDOM_[@]}" --do_verify=0
say "wrote 2 x $SIZE"
cycle_pool
fio_run stream "${STREAM[@]}" --verify_only
fio_run random "${RANDOM_[@]}" --verify_only
say "verified both after a remount"
finish
