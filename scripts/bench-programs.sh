#!/usr/bin/env bash
# Times what people do with a tree of sources: git status, git diff, grep -r, find and du, warm, on
# two directories in turns. Prints medians, and the median of the ratios (rate of the first) / (rate
# of the second) of a round, with the least and the greatest.
#
#   scripts/bench-programs.sh FIRST SECOND SOURCE
#   scripts/bench-programs.sh /mnt/holdfast /mnt/ext4 ~/src/linux
#
#   FIRST, SECOND   directories on the two file systems; a new one in each gets a copy of SOURCE in
#                   a new git repository, and is removed at the end
#   ROUNDS          [8]
set -euo pipefail

fail() { printf 'bench-programs: %s\n' "$*" >&2; exit 1; }

[ $# = 3 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
ROUNDS=${ROUNDS:-8}
[ -d "$3" ] || fail "$3 is not a directory"
command -v git >/dev/null || fail "git is not installed"

trees=()
clean_up() { rm -rf "${trees[@]}"; }
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# plant DIR SOURCE: copies SOURCE into a new repository in DIR.
plant() {
    local tree
    tree=$(mktemp -d "$1/bench-programs.XXXXXX")
    trees+=("$tree")
    cp -a "$2/." "$tree/"
    rm -rf "$tree/.git"
    git -C "$tree" init -q
    git -C "$tree" -c core.safecrlf=false add -A
    git -C "$tree" -c user.name=bench -c user.email=bench@localhost -c gc.auto=0 commit -qm planted
}

# took COMMAND...: prints how many microseconds it takes. What it answers does not matter: grep
# finds nothing.
took() {
    local begin=${EPOCHREALTIME/./}
    "$@" >/dev/null 2>&1 || true
    echo $((${EPOCHREALTIME/./} - begin))
}

# compare NAME COMMAND...: runs it in both trees, first twice each unmeasured.
compare() {
    local name=$1 round times=()
    shift
    for round in 1 2; do
        (cd "${trees[0]}" && took "$@") >/dev/null
        (cd "${trees[1]}" && took "$@") >/dev/null
    done
    for ((round = 0; round < ROUNDS; round++)); do
        if ((round % 2)); then
            second=$(cd "${trees[1]}" && took "$@") first=$(cd "${trees[0]}" && took "$@")
        else
            first=$(cd "${trees[0]}" && took "$@") second=$(cd "${trees[1]}" && took "$@")
        fi
        times+=("$first $second")
    done
    printf '%s\n' "${times[@]}" | awk -v name="$name" '
        function median(values, count,    i, j, kept) {
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
                    kept = values[j]; values[j] = values[j - 1]; values[j - 1] = kept
                }
            return (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
        }
        { first[NR] = $1; second[NR] = $2; ratio[NR] = $2 / $1 }
        END {
            middle = median(ratio, NR)
            printf "%-12s %10.1f %10.1f    %.2f [%.2f, %.2f]\n", name, median(first, NR) / 1000,
                median(second, NR) / 1000, middle, ratio[1], ratio[NR]
        }'
}

plant "$1" "$3"
plant "$2" "$3"
printf '%s files, %s rounds\n' "$(git -C "${trees[0]}" ls-files | wc -l)" "$ROUNDS"
printf '%-12s %10s %10s    %s\n' program first,ms second,ms "first / second"
compare "git status" git status --porcelain
compare "git diff" git diff --stat HEAD
compare "grep -r" grep -r 'no such words anywhere' .
compare "find -size" find . -size +100M
compare "du" du -s .
