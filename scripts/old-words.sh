#!/usr/bin/env bash
# The program by the commands of earlier versions, for scripts that were written before: each old
# command is run as what it is called now. The program itself refuses them, with the new line.
#
#   PROGRAM=target/release/holdfast scripts/old-words.sh clone create pool.hf:home@monday
#
#   PROGRAM   the program [target/release/holdfast, else target/debug/holdfast]
set -u
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
program=${PROGRAM:-$root/target/release/holdfast}
[ -x "$program" ] || program=$root/target/debug/holdfast

# The old words, and what they are now.
new_of() {
    case "$1 $2" in
        "clone create" | "clone list" | "clone delete" | "clone hold" | "clone release") echo "snapshot $2" ;;
        "fileset fork") echo "clone create" ;;
        "import "*) echo "copy-in $2" ;;
        "export-tree "*) echo "copy-out $2" ;;
        *) return 1 ;;
    esac
}

before=()
while [[ ${1-} == --json || ${1-} == --quiet ]]; do
    before+=("$1")
    shift
done
case ${1-} in
    torture | prove | bench | lab)
        lab=${program%/*}/holdfast-lab command=${1/#lab/papers}
        shift
        exec "$lab" "${before[@]}" "$command" "${@/#--clones/--snapshots}" ;;
esac
if [ $# -ge 2 ] && new=$(new_of "$1" "$2"); then
    # The second word may be a path with spaces: only the first is new then.
    if [ "${new#* }" = "$2" ]; then set -- "${new%% *}" "${@:2}"; else set -- "${new%% *}" "${new#* }" "${@:3}"; fi
fi
exec -a holdfast "$program" "${before[@]}" "$@"
