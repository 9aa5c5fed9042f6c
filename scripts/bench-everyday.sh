#!/usr/bin/env bash
# Measures what people feel every day, each beside a peer in the same run and in turns: a tree made,
# copied and removed by both transports, and with and without processors kept from halting, small
# files read cold beside XFS, a check beside e2fsck, a tree that is copied in beside tar on a mount,
# the mount of a pool whose server was killed beside that of one that was closed, a snapshot that is
# taken under load beside a snapshot of btrfs.
# Prints medians and the median of the ratios of a round, with the least and the greatest.
#
#   scripts/bench-everyday.sh [transports|latency|cold|check|attributes|copy-in|killed|snapshot]...    all, if none is named
#   FILES=58000 ROUNDS=3 scripts/bench-everyday.sh cold
#
#   SOURCE      [/usr]     where small files are taken from: up to 9 KB each
#   FILES       [50000]    how many of them
#   CHECKED     [250000]   files of the tree that is checked
#   ROUNDS      [4]
#   SNAPSHOTS      [20]       snapshots that are taken in a round under each load
#   PLACE, HOLDFAST    as scripts/bench-lib.sh has them
#
# Needs root: loop devices, mounts, dropping the kernel's caches. Loop devices pass O_DIRECT on.
NAME=bench-everyday
# shellcheck source=scripts/bench-lib.sh
. "$(dirname "$0")/bench-lib.sh"

SOURCE=${SOURCE:-/usr} FILES=${FILES:-50000} CHECKED=${CHECKED:-250000} ROUNDS=${ROUNDS:-4}
SMALL_BYTES=9000
# Files of a directory of the tree that is checked, and their bytes.
CHECKED_DIR_FILES=200 CHECKED_BYTES=20
STREAM_MIB=${STREAM_MIB:-1024}
SNAPSHOTS=${SNAPSHOTS:-20}

begin_bench mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs git=git fio=fio
pool=$place/pool.hf

# fresh FLAGS...: mounts a new pool on $pool, a loop device.
fresh() {
    "$HOLDFAST" create "$pool" --force >/dev/null
    mount_it "$@"
}
mount_it() { "$HOLDFAST" mount "$pool" "$mnt" --daemon "$@" >/dev/null; }
reads_of() { awk '{ print $1 }' "/sys/block/$(basename "$1")/stat"; }
sectors_read_of() { awk '{ print $3 }' "/sys/block/$(basename "$1")/stat"; }

# The small files of SOURCE as one archive, and a repository of them.
plant() {
    [ -e "$place/tree.tar" ] && return 0
    (cd "$SOURCE" && find . -xdev -type f -size -$((SMALL_BYTES + 1))c -printf '%P\0' 2>/dev/null \
        | sed -zn "1,${FILES}p" >"$place/names")
    tar -C "$SOURCE" --null -T "$place/names" -cf "$place/tree.tar"
    printf 'tree: %s files of %s\n' "$(tr -dc '\0' <"$place/names" | wc -c)" "$SOURCE"
}
plant_repository() {
    [ -d "$place/repository" ] && return 0
    mkdir "$place/repository"
    tar -C "$place/repository" -xf "$place/tree.tar"
    git -C "$place/repository" init -q
    git -C "$place/repository" -c core.safecrlf=false add -A
    git -C "$place/repository" -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 \
        commit -qm planted
}

both() {
    local first second
    "$@" "$mnt/two-a" & first=$!
    "$@" "$mnt/two-b" & second=$!
    wait "$first" && wait "$second"
}
extract_in() { mkdir "$1" && tar -C "$1" -xf "$place/tree.tar"; }

# everyday NAME FLAGS...: the work of a day on a mount with these flags.
everyday() {
    local name=$1
    shift
    fresh "$@"
    note "tar x" "$name" "$(took extract_in "$mnt/tree")"
    note "cp -r" "$name" "$(took cp -r "$mnt/tree" "$mnt/copy")"
    note "rm -r" "$name" "$(took rm -r "$mnt/copy")"
    note "git clone" "$name" "$(took git clone -q --no-hardlinks "$place/repository" "$mnt/clone")"
    note "tar x, two clients" "$name" "$(took both extract_in)"
    note "stream write" "$name" "$(took dd if=/dev/zero "of=$mnt/stream" bs=1M "count=$STREAM_MIB" conv=fsync status=none)"
    unmount_it
    mount_it "$@"
    note "stream read" "$name" "$(took dd "if=$mnt/stream" of=/dev/null bs=1M status=none)"
    note "random reads, 16 deep" "$name" "$(took fio --name=r --filename="$mnt/stream" --rw=randread --bs=4k \
        --iodepth=16 --ioengine=libaio --direct=1 --size="${STREAM_MIB}M" --io_size=128M --output=/dev/null)"
    unmount_it
}

# in_turns FIRST SECOND FLAG: the everyday work with FLAG FIRST and FLAG SECOND, in turns.
in_turns() {
    plant
    plant_repository
    attach "$place/$section.img" 16G; pool=$loop
    local round first=$1 second=$2
    for ((round = 0; round < ROUNDS; round++)); do
        if ((round % 2)); then first=$2 second=$1; else first=$1 second=$2; fi
        everyday "$first" "$3" "$first"
        everyday "$second" "$3" "$second"
    done
    compare "$1" "$2"
}

read_all() { find "$1" -type f -print0 | xargs -0 cat; }

cold_files() {
    plant
    attach "$place/cold.img" 8G; pool=$loop
    attach "$place/cold-xfs.img" 8G; local xfs=$loop
    mkfs.xfs -q "$xfs"
    fresh; extract_in "$mnt/tree"; unmount_it
    mount "$xfs" "$peer"; extract_in "$peer/tree"; umount "$peer"
    local round before
    for ((round = 0; round < ROUNDS; round++)); do
        cold; mount_it; before=$(reads_of "$pool")
        note "find | xargs cat" holdfast "$(took read_all "$mnt/tree")"
        printf 'device reads: holdfast %s' "$(($(reads_of "$pool") - before))"
        unmount_it
        cold; mount "$xfs" "$peer"; before=$(reads_of "$xfs")
        note "find | xargs cat" xfs "$(took read_all "$peer/tree")"
        printf ', xfs %s\n' "$(($(reads_of "$xfs") - before))"
        umount "$peer"
    done
    compare holdfast xfs
}

# many DIR: CHECKED files of a few bytes.
many() {
    perl -e 'my ($top, $files, $here, $bytes) = @ARGV;
        for my $at (0 .. $files - 1) {
            my $dir = sprintf("%s/dir-%05d", $top, int($at / $here));
            mkdir $dir unless $at % $here;
            open my $file, ">", "$dir/file-$at" or die "$dir: $!"; print $file "x" x $bytes; close $file;
        }' "$1" "$CHECKED" "$CHECKED_DIR_FILES" "$CHECKED_BYTES"
}

checks() {
    attach "$place/check.img" 8G; pool=$loop
    attach "$place/check-ext4.img" 8G; local ext4=$loop
    attach "$place/check-xfs.img" 8G; local xfs=$loop
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$ext4"
    mkfs.xfs -q "$xfs"
    fresh; many "$mnt"; unmount_it
    mount "$ext4" "$peer"; many "$peer"; umount "$peer"
    mount "$xfs" "$peer"; many "$peer"; umount "$peer"
    local round before bytes
    for ((round = 0; round < ROUNDS; round++)); do
        cold; before=$(sectors_read_of "$pool")
        note "check" holdfast "$(took "$HOLDFAST" check "$pool")"
        bytes=$((($(sectors_read_of "$pool") - before) * 512))
        # As many bytes one after the other, of a file that has no holes.
        [ -e "$place/sequential" ] || dd if=/dev/urandom of="$place/sequential" bs=64K iflag=count_bytes count="$bytes" conv=fsync status=none
        cold; note "check" sequential "$(took dd if="$place/sequential" of=/dev/null bs=1M iflag=direct)"
        printf 'holdfast check read %s MB\n' "$((bytes / 1000000))"
        cold; note "check" e2fsck "$(took e2fsck -f -n "$ext4")"
        cold; note "check" xfs_repair "$(took xfs_repair -n "$xfs")"
    done
    compare holdfast e2fsck
    compare holdfast xfs_repair
    compare holdfast sequential
}

with_attributes() {
    plant
    attach "$place/attributes.img" 8G; pool=$loop
    local round
    for ((round = 0; round < ROUNDS; round++)); do
        fresh; note "tar x" with "$(took extract_in "$mnt/tree")"; unmount_it
        fresh -o noxattr; note "tar x" without "$(took extract_in "$mnt/tree")"; unmount_it
    done
    compare without with
}

# Each from a pool that is made and closed to one that is closed again with all of the tree in it.
extract_and_close() { extract_in "$mnt/tree" && unmount_it; }
copy_it() { "$HOLDFAST" copy-in "$1" "$pool" --path /tree; }
copies() {
    plant
    mkdir "$place/tree" && tar -C "$place/tree" -xf "$place/tree.tar"
    attach "$place/copy-in.img" 8G; pool=$loop
    local round
    for ((round = 0; round < ROUNDS; round++)); do
        fresh; note "a tar in" mount "$(took extract_and_close)"
        "$HOLDFAST" create "$pool" --force >/dev/null
        note "a tar in" copy-in "$(took copy_it "$place/tree.tar")"
        fresh; note "a directory in" mount "$(took copy_and_close)"
        "$HOLDFAST" create "$pool" --force >/dev/null
        note "a directory in" copy-in "$(took copy_it "$place/tree")"
    done
    compare copy-in mount
}
copy_and_close() { cp -a "$place/tree" "$mnt/tree" && unmount_it; }

# killed: under a stream and new files, which go on until the server is gone.
killed() {
    attach "$place/killed.img" 8G; pool=$loop
    local round
    "$HOLDFAST" create "$pool" --force >/dev/null
    for ((round = 0; round < ROUNDS * 3; round++)); do
        local pid; pid=$("$HOLDFAST" mount "$pool" "$mnt" --daemon --json | grep -o '"pid":[0-9]*' | cut -d: -f2)
        (mkdir "$mnt/files-$round"; number=0; while : >"$mnt/files-$round/$((number++))"; do :; done) 2>/dev/null & local files=$!
        dd if=/dev/zero of="$mnt/stream" bs=1M count=100000 2>/dev/null & local stream=$!
        sleep 3
        kill -9 "$pid"
        wait "$files" "$stream" || true
        umount -l "$mnt"
        note "mount" killed "$(took mount_it)"
        unmount_it
        note "mount" closed "$(took mount_it)"
        unmount_it
    done
    took "$HOLDFAST" check "$pool" >/dev/null
    compare killed closed
}

# load KIND DIR FILE: works in DIR until it is terminated. A stream writes a MiB at a time over a
# file; names are new files, and old ones removed. FILE gets when each operation began, and what it
# took, in microseconds.
load() {
    exec perl -MTime::HiRes=time -e '
        my ($kind, $dir, $file) = @ARGV;
        my ($over, $number, @times) = (0, 0);
        $SIG{TERM} = sub { $over = 1 };
        my $bytes = "x" x ($kind eq "stream" ? 1 << 20 : 100);
        my $stream;
        open $stream, "+>", "$dir/stream" or die "$dir: $!" if $kind eq "stream";
        until ($over) {
            my $begun = time;
            if ($kind eq "stream") {
                sysseek $stream, ($number % 256) << 20, 0;
                syswrite $stream, $bytes or die "$dir/stream: $!";
            } else {
                open my $new, ">", "$dir/name-$number" or die "$dir: $!";
                syswrite $new, $bytes or die "$dir: $!";
                close $new;
                unlink sprintf "%s/name-%d", $dir, $number - 1000 if $number >= 1000;
            }
            $number++;
            push @times, sprintf "%d\t%d", $begun * 1e6, (time - $begun) * 1e6;
        }
        open my $out, ">", $file or die "$file: $!";
        print $out "$_\n" for @times;' "$@"
}

take_holdfast() { "$HOLDFAST" snapshot create "$pool:root@$1"; }
drop_holdfast() { "$HOLDFAST" snapshot delete "$pool:root@$1" --wait; }
take_btrfs() { btrfs subvolume snapshot -r "$peer/home" "$peer/$1"; }
drop_btrfs() { btrfs subvolume delete "$peer/$1"; }
settle_holdfast() { :; }
settle_btrfs() { btrfs filesystem sync "$peer" && btrfs subvolume sync "$peer"; }

# under_load WHO DIR KIND: snapshots of DIR are taken while a load works in it. Of each, what the
# command took, and the longest operation of the load that it met.
under_load() {
    local who=$1 dir=$2/load-$3 kind=$3 snapshot begin
    mkdir -p "$dir"
    load "$kind" "$dir" "$place/operations" & local pid=$!
    sleep 1
    : >"$place/taken"
    for ((snapshot = 0; snapshot < SNAPSHOTS; snapshot++)); do
        begin=${EPOCHREALTIME/./}
        note "take, $kind" "$who" "$(took "take_$who" "c$snapshot")"
        printf '%s\t%s\n' "$begin" "${EPOCHREALTIME/./}" >>"$place/taken"
        sleep 0.3
    done
    kill "$pid"
    wait "$pid" || fail "the load on $who has ended: $dir"
    awk -F'\t' -v who="$who" -v kind="$kind" '
        NR == FNR { from[NR] = $1; to[NR] = $2; taken = NR; next }
        { for (i = 1; i <= taken; i++) if ($1 < to[i] && $1 + $2 > from[i] && $2 > most[i]) most[i] = $2 }
        END {
            for (i = 1; i <= taken; i++) {
                printf "longest wait, %s\t%s\t%d\n", kind, who, most[i] + 1
                if (most[i] > worst) worst = most[i]
            }
            printf "worst of %d waits, %s\t%s\t%d\n", taken, kind, who, worst + 1
        }
    ' "$place/taken" "$place/operations" >>"$place/$section.times"
    begin=${EPOCHREALTIME/./}
    for ((snapshot = 0; snapshot < SNAPSHOTS; snapshot++)); do took "drop_$who" "c$snapshot" >/dev/null; done
    took "settle_$who" >/dev/null
    note "drop all, $kind" "$who" $((${EPOCHREALTIME/./} - begin))
}

# A snapshot is durable when it is answered; a snapshot of btrfs is with the next commit.
snapshots() {
    install_missing mkfs.btrfs=btrfs-progs
    plant
    attach "$place/snapshot.img" 8G; pool=$loop
    attach "$place/snapshot-btrfs.img" 8G; local btrfs=$loop
    mkfs.btrfs -q "$btrfs"
    fresh; extract_in "$mnt/tree"
    mount "$btrfs" "$peer"; btrfs subvolume create "$peer/home" >/dev/null; extract_in "$peer/home/tree"
    local round kind
    for ((round = 0; round < ROUNDS; round++)); do
        for kind in stream names; do
            under_load holdfast "$mnt" "$kind"
            under_load btrfs "$peer/home" "$kind"
        done
    done
    unmount_it
    umount "$peer"
    took "$HOLDFAST" check "$pool" >/dev/null
    compare holdfast btrfs
}

[ $# -gt 0 ] || set -- transports latency cold check attributes copy-in killed snapshot
for section in "$@"; do
    case $section in
        transports) in_turns uring dev --transport ;;
        latency) in_turns auto off --cpu-latency ;;
        cold) cold_files ;;
        check) checks ;;
        attributes) with_attributes ;;
        copy-in) copies ;;
        killed) killed ;;
        snapshot) snapshots ;;
        *) fail "there is no $section: transports, latency, cold, check, attributes, copy-in, killed or snapshot" ;;
    esac
done
