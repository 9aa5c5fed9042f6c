# Common to the benchmarks that a script runs beside peers: a place on the disk, loop devices,
# measures taken in rounds, and their medians.
#
# A benchmark sets NAME, sources this, calls `begin_bench`, and `note`s times while $section says what
# it is at; `compare` prints them. Variables:
#
#   PLACE       a directory on the disk to measure [a new one in TMPDIR, or in /var/tmp]
#   HOLDFAST    the program [target/release/holdfast]

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/setup.sh
. "$ROOT/scripts/setup.sh"
HOLDFAST=${HOLDFAST:-$ROOT/target/release/holdfast}
section=
loops=()

fail() { printf '%s: %s\n' "$NAME" "$*" >&2; exit 1; }

# begin_bench TOOL=PACKAGE...: makes $place, where all lies, and $mnt and $peer, where mounts go.
begin_bench() {
    [ "$(id -u)" = 0 ] || fail "loop devices, mounts and caches need root: sudo $0"
    [ -x "$HOLDFAST" ] || fail "no $HOLDFAST: run cargo build --release -p cli -p lab, or set HOLDFAST"
    install_missing "$@"
    place=$(mktemp -d "${PLACE:-${TMPDIR:-/var/tmp}}/holdfast-bench.XXXXXX")
    export HOLDFAST_RUN_DIR=$place/run
    mnt=$place/mnt peer=$place/peer
    mkdir "$mnt" "$peer"
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
}

clean_up() {
    local code=$?
    trap - EXIT
    set +e
    ! mountpoint -q "$mnt" || "$HOLDFAST" unmount "$mnt" >/dev/null
    ! mountpoint -q "$peer" || umount "$peer"
    for loop in "${loops[@]}"; do losetup -d "$loop"; done
    rm -rf "$place"
    exit "$code"
}

# attach FILE SIZE: makes a sparse file and a loop device on it; the device is in $loop.
attach() {
    truncate -s "$2" "$1"
    loop=$(losetup --find --show --direct-io=on "$1")
    loops+=("$loop")
}

unmount_it() { "$HOLDFAST" unmount "$mnt" >/dev/null; }
cold() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# took COMMAND...: prints its microseconds; fails if it does.
took() {
    local begin=${EPOCHREALTIME/./}
    "$@" >/dev/null 2>"$place/said" || { cat "$place/said" >&2; fail "$* failed"; }
    echo $((${EPOCHREALTIME/./} - begin))
}

# note MEASURE WHO MICROSECONDS
note() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$place/$section.times"; }

# compare FIRST SECOND: of each measure of both their medians, and how many times faster FIRST is.
compare() {
    printf '\n%-24s %12s %12s    %s\n' "$section" "$1, ms" "$2, ms" "time of $2 / $1"
    awk -F'\t' -v first="$1" -v second="$2" '
        function middle(list, count,    i, j, kept) {
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && list[j - 1] > list[j]; j--) {
                    kept = list[j]; list[j] = list[j - 1]; list[j - 1] = kept
                }
            return (list[int((count + 1) / 2)] + list[int(count / 2) + 1]) / 2
        }
        !($1 in seen) { seen[$1] = 1; order[++measures] = $1 }
        { at = ++count[$1, $2]; times[$1, $2, at] = $3 }
        END {
            for (m = 1; m <= measures; m++) {
                name = order[m]; n = count[name, first]
                if (!((name, second) in count)) continue
                for (i = 1; i <= n; i++) {
                    a[i] = times[name, first, i]; b[i] = times[name, second, i]; r[i] = b[i] / a[i]
                }
                centre = middle(r, n)
                printf "%-24s %12.0f %12.0f    %.2f [%.2f, %.2f]\n", name, middle(a, n) / 1000,
                    middle(b, n) / 1000, centre, r[1], r[n]
            }
        }' "$place/$section.times"
}
