#!/usr/bin/env bash
# Everyday load generators: stress-ng's file-system class, dbench, bonnie++, fio with every engine.
#
#   STRESS_SECONDS   stress-ng, all stressors together [20; full: 1800]
#   DBENCH_SECONDS   [3; full: 60]
#   BONNIE_SIZE      MiB [64; full: 2048]
#   FIO_ENGINE_SIZE  of each engine's file [8M; full: 256M]
. "$(dirname "$0")/lib.sh"
NAME=stress
need stress-ng dbench bonnie++ fio
STRESS_SECONDS=${STRESS_SECONDS:-$(by_scale 20 1800)}
DBENCH_SECONDS=${DBENCH_SECONDS:-$(by_scale 3 60)}
BONNIE_SIZE=${BONNIE_SIZE:-$(by_scale 64 2048)}
FIO_ENGINE_SIZE=${FIO_ENGINE_SIZE:-$(by_scale 8M 256M)}
begin stress

# Stressors of the class that make files in the directory given. The rest of the class works on
# pseudo file systems, or only on file systems of the kernel (quota, verity).
STRESSORS=(access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl fiemap
    filename flock fpunch fsize fstat getdent handle hdd io iomix lease link locka lockf lockofd mknod
    open rename symlink sync-file touch utime xattr)
each=$((STRESS_SECONDS / ${#STRESSORS[@]} + 1))
for stressor in "${STRESSORS[@]}"; do
    code=0
    mkdir "$DIR/stress"
    # iomix and hdd by default write more than CI has time for.
    timeout $((each * 10 + 60)) stress-ng --"$stressor" 2 --timeout "$each" --temp-path "$DIR/stress" \
        --verify --hdd-bytes 32M --iomix-bytes 32M --copy-file-bytes 128M --fallocate-bytes 32M \
        --no-rand-seed >"$WORK/stress.log" 2>&1 || code=$?
    case $code in
        0) ;;
        # 3: not resources enough, 4: not implemented here.
        3 | 4) say "stress-ng $stressor: not possible here ($code)" ;;
        *) tail -20 "$WORK/stress.log" >&2; fail "stress-ng $stressor exits with $code" ;;
    esac
    ! grep -E 'fail:' "$WORK/stress.log" >&2 || fail "stress-ng $stressor finds a mistake"
    rm -rf "$DIR/stress"
done
say "stress-ng: ${#STRESSORS[@]} stressors, $each s each"
cycle_pool

mkdir "$DIR/dbench"
timeout $((DBENCH_SECONDS * 5 + 60)) dbench -D "$DIR/dbench" -t "$DBENCH_SECONDS" 4 \
    >"$WORK/dbench.log" 2>&1 || { tail -20 "$WORK/dbench.log" >&2; fail "dbench"; }
say "dbench: $(grep Throughput "$WORK/dbench.log")"

mkdir "$DIR/bonnie"
user=()
[ "$(id -u)" != 0 ] || user=(-u root)
timeout 3000 bonnie++ -d "$DIR/bonnie" "${user[@]}" -q -s "$BONNIE_SIZE" -r "$((BONNIE_SIZE / 2))" \
    -n "$(by_scale 1 16)" >"$WORK/bonnie.csv" 2>"$WORK/bonnie.log" \
    || { tail -20 "$WORK/bonnie.log" >&2; fail "bonnie++"; }
say "bonnie++: $BONNIE_SIZE MiB"

mkdir "$DIR/fio"
for engine in sync psync vsync pvsync pvsync2 mmap libaio posixaio io_uring splice; do
    for direct in 0 1; do
        # Neither maps nor pipes go past the page cache.
        case $engine/$direct in mmap/1 | splice/1) continue ;; esac
        (cd "$WORK" && timeout 600 fio --name="$engine" --filename="$DIR/fio/$engine" \
            --size="$FIO_ENGINE_SIZE" --rw=randrw --bs=4k --iodepth=8 --ioengine="$engine" \
            --direct="$direct" --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=4711 \
            --fallocate=none --group_reporting) >"$WORK/fio.log" 2>&1 \
            || { tail -20 "$WORK/fio.log" >&2; fail "fio with $engine, direct=$direct"; }
    done
done
say "fio: every engine verified, $FIO_ENGINE_SIZE each"
finish
