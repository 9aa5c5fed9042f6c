#!/usr/bin/env bash
# Measures a pool of several devices beside the devices themselves and beside peers, in the same run
# and in turns: streams of raid5 beside what its files take together, small writes that are synced
# beside btrfs in its raid5 or md with ext4, reads with a device away beside reads with all, and how
# fast a new device is rebuilt.
# Prints medians and the median of the ratios of a round, with the least and the greatest.
#
#   scripts/bench-pools.sh [streams|sync|degraded|rebuild|delay]...    all but delay, if none is named
#   ROUNDS=5 STREAM_MIB=4096 scripts/bench-pools.sh streams
#
#   MEMBERS     [5]      devices of the pool
#   STREAM_MIB  [2048]   what a stream moves
#   FILE_MIB    [256]    the file in which small writes go
#   WRITES      [6400]   small writes of a round that syncs every 32; an eighth as many with a sync each
#   DELAY_MS    [10]     what each request takes longer at the devices of `delay`
#   ROUNDS      [4]
#   PLACE, HOLDFAST    as scripts/bench-lib.sh has them
#
# `delay` wants device mapper and md: there each device is a dm-delay on a loop device. Needs root.
NAME=bench-pools
# shellcheck source=scripts/bench-lib.sh
. "$(dirname "$0")/bench-lib.sh"
MEMBERS=${MEMBERS:-5} STREAM_MIB=${STREAM_MIB:-2048} FILE_MIB=${FILE_MIB:-256} WRITES=${WRITES:-6400}
DELAY_MS=${DELAY_MS:-10} ROUNDS=${ROUNDS:-4}
begin_bench fio=fio

# The loop devices of a pool, and their files.
devices=() files=()

# members PREFIX MIB: attaches so many devices as a pool has; they are in `devices`.
members() {
    local number
    devices=() files=()
    for ((number = 0; number < MEMBERS; number++)); do
        attach "$place/$1$number.img" "$2M"
        devices+=("$loop") files+=("$place/$1$number.img")
    done
}
joined() { local IFS=$1; shift; printf '%s' "$*"; }
create_it() { "$HOLDFAST" create --group "raid5:$(joined , "${devices[@]}")" --force >/dev/null; }
mount_it() { "$HOLDFAST" mount "${devices[1]}" "$mnt" --daemon "$@" >/dev/null; }

# fio_jobs FLAGS... --name=JOB FLAGS...: prints the microseconds that fio takes to read or write, the
# sync at the end with them; of jobs that run at a time the slowest's. What stands before the first
# name is for all.
fio_jobs() {
    local said
    said=$(fio --output-format=terse --terse-version=3 "$@") || fail "fio: $said"
    echo $(($(cut -d';' -f9,50 <<<"$said" | tr ';' '\n' | sort -n | tail -1) * 1000))
}
direct() { fio_jobs --bs=1M --direct=1 --ioengine=libaio --iodepth=4 --end_fsync=1 "$@"; }
spent() { fio_jobs --name=bench "$@"; }

# raw KIND MIB: the devices together move so much each, all at a time, none of it in a cache.
raw() {
    local number of_each=()
    for ((number = 0; number < MEMBERS; number++)); do
        of_each+=(--name="m$number" --filename="${devices[number]}" --rw="$1" --size="$2M")
    done
    direct "${of_each[@]}"
}
stream() { spent --rw="$1" --bs=1M --size="${STREAM_MIB}M" --end_fsync=1 "--filename=$2"; }

# A stream of raid5 moves data and parity; the devices move as many bytes without it.
streams() {
    local round share=$((STREAM_MIB / (MEMBERS - 1)))
    members stream $((share * 2 + 512))
    for ((round = 0; round < ROUNDS; round++)); do
        note "write" devices "$(raw write "$share")"
        cold
        note "read" devices "$(raw read $((STREAM_MIB / MEMBERS)))"
        create_it
        mount_it
        note "write" raid5 "$(stream write "$mnt/stream")"
        unmount_it
        cold
        mount_it
        note "read" raid5 "$(stream read "$mnt/stream")"
        unmount_it
    done
    compare raid5 devices
}

# small WHO DIR: 4 KiB at random places over a file, with a sync after each, after 32, and at the end.
small() {
    local each
    for each in 1 32 0; do
        local writes=$WRITES sync=(--fsync="$each")
        [ "$each" != 1 ] || writes=$((WRITES / 8))
        [ "$each" != 0 ] || sync=(--end_fsync=1)
        note "4 KiB, sync at $each" "$1" "$(spent --rw=randwrite --bs=4k --size="${FILE_MIB}M" \
            --filename="$2/small" --number_ios="$writes" --norandommap=1 --randseed="$round" "${sync[@]}")"
    done
}
lay() { spent --rw=write --bs=1M --size="${FILE_MIB}M" --end_fsync=1 --filename="$1/small" >/dev/null; }

# Both in raid5 over loop devices; btrfs has its metadata in two copies, as its makers advise.
synced() {
    install_missing mkfs.btrfs=btrfs-progs
    local round
    members btrfs $((FILE_MIB * 2))
    mkfs.btrfs -q -f -d raid5 -m raid1 "${devices[@]}"
    mount -o "$(printf 'device=%s,' "${devices[@]:1}")" "${devices[0]}" "$peer" 2>/dev/null \
        || mount "${devices[0]}" "$peer"
    members sync $((FILE_MIB * 2))
    create_it
    mount_it
    lay "$mnt"; lay "$peer"
    for ((round = 0; round < ROUNDS; round++)); do
        small raid5 "$mnt"
        small btrfs "$peer"
    done
    unmount_it
    umount "$peer"
    compare raid5 btrfs
}

# The same pool with all of its devices, and with one failed.
degraded() {
    local round
    members degraded $((STREAM_MIB / (MEMBERS - 1) * 2 + 512))
    create_it
    mount_it
    stream write "$mnt/stream" >/dev/null
    for ((round = 0; round < ROUNDS; round++)); do
        unmount_it; cold; mount_it
        note "read" all "$(stream read "$mnt/stream")"
        note "4 KiB reads at random" all "$(random_reads)"
        "$HOLDFAST" device fail "${devices[1]}" "${devices[3]}" >/dev/null
        unmount_it; cold; mount_it
        note "read" degraded "$(stream read "$mnt/stream")"
        note "4 KiB reads at random" degraded "$(random_reads)"
        took "$HOLDFAST" device online "${devices[1]}" "${devices[3]}" --wait >/dev/null
    done
    unmount_it
    compare degraded all
}
random_reads() {
    spent --rw=randread --bs=4k --size="${STREAM_MIB}M" --filename="$mnt/stream" --direct=1 \
        --ioengine=libaio --iodepth=16 --number_ios=20000
}

# A new device beside what the others are read and it is written at the same time.
rebuild() {
    local round share=$((STREAM_MIB / (MEMBERS - 1)))
    members rebuild $((share * 2 + 512))
    create_it
    mount_it
    stream write "$mnt/stream" >/dev/null
    local fresh
    for ((round = 0; round < ROUNDS; round++)); do
        attach "$place/fresh$round.img" $((share * 2 + 512))M
        fresh=$loop
        cold
        note "rebuild" devices "$(exchanged "$share" "$fresh")"
        note "rebuild" raid5 "$(took "$HOLDFAST" device replace "${devices[1]}" "${devices[3]}" "$fresh" --force --wait)"
        devices[3]=$fresh
    done
    unmount_it
    took "$HOLDFAST" check "${devices[1]}" >/dev/null
    compare raid5 devices
}
# exchanged MIB DEVICE: so much is read of each device but one, and written to DEVICE.
exchanged() {
    local number of_each=(--name=w --filename="$2" --rw=write --size="$1M")
    for ((number = 0; number < MEMBERS; number++)); do
        [ "$number" = 3 ] || of_each+=(--name="m$number" --filename="${devices[number]}" --rw=read --size="$1M")
    done
    direct "${of_each[@]}"
}

# slow: puts a dm-delay on each of `devices`.
slow() {
    local number name
    for number in "${!devices[@]}"; do
        name=holdfast-$1$number
        dmsetup create "$name" --table \
            "0 $(blockdev --getsz "${devices[number]}") delay ${devices[number]} 0 $DELAY_MS"
        delays+=("$name")
        devices[number]=/dev/mapper/$name
    done
}
delays=()
# Beside md in raid5 with ext4 on it, and beside nilfs2 on md: the same work on the same slow devices.
delay() {
    command -v dmsetup >/dev/null && command -v mdadm >/dev/null || fail "delay wants dmsetup and mdadm"
    local round who
    members slow $((FILE_MIB * 2))
    slow a
    trap 'leave_delay; clean_up' EXIT
    for ((round = 0; round < ROUNDS; round++)); do
        for who in ext4 nilfs2; do
            mdadm --create /dev/md99 --run --force --assume-clean --quiet --level=5 \
                --raid-devices="$MEMBERS" "${devices[@]}" </dev/null
            case $who in
                ext4) mkfs.ext4 -q -F /dev/md99 ;;
                nilfs2) mkfs.nilfs2 -q -f /dev/md99 ;;
            esac
            mount -t "$who" /dev/md99 "$peer"
            lay "$peer"
            small "md+$who" "$peer"
            umount "$peer"
            mdadm --stop --quiet /dev/md99
            mdadm --zero-superblock "${devices[@]}"
        done
        create_it
        mount_it
        lay "$mnt"
        small raid5 "$mnt"
        unmount_it
    done
    compare raid5 md+ext4
    compare raid5 md+nilfs2
}
leave_delay() {
    ! mountpoint -q "$mnt" || "$HOLDFAST" unmount "$mnt" >/dev/null
    ! mountpoint -q "$peer" || umount "$peer"
    [ ! -e /dev/md99 ] || mdadm --stop --quiet /dev/md99
    local name
    for name in "${delays[@]}"; do dmsetup remove "$name"; done
}

[ $# -gt 0 ] || set -- streams sync degraded rebuild
for section in "$@"; do
    case $section in
        streams) streams ;;
        sync) synced ;;
        degraded) degraded ;;
        rebuild) rebuild ;;
        delay) delay ;;
        *) fail "there is no $section: streams, sync, degraded, rebuild or delay" ;;
    esac
done
