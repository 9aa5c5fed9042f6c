#!/usr/bin/env bash
# Pools that are damaged from outside, without the test kit: no panic, no hang, no wrong bytes, no
# other file destroyed, and `check` names what is served as an error. See scripts/corruptor.py.
#
#   CORRUPTIONS      mutations [100; full: 2000]
#   CORRUPTOR_SEED   [1]
#   CORRUPTOR_JOBS   at a time [2]
. "$(dirname "$0")/lib.sh"
NAME=corruptor
need python3
is_ours || skip "it damages its own pools"
[ "$(id -u)" = 0 ] || skip "it changes owners' attributes: it needs root"
[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "there is no /dev/fuse that may be opened"
find_program
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-$NAME.XXXXXX")}
# On a finding the pools are kept, to be tried again with what it prints.
python3 "$ROOT/scripts/corruptor.py" --holdfast "$HOLDFAST" --work "$WORK" --keep \
    --count "${CORRUPTIONS:-$(by_scale 100 2000)}" --seed "${CORRUPTOR_SEED:-1}" \
    --jobs "${CORRUPTOR_JOBS:-2}" || fail "the pools are in $WORK"
rm -rf "$WORK"
say PASSED
