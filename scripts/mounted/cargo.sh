#!/usr/bin/env bash
# cargo build of Holdfast itself, sources and target on the mount.
#
#   CARGO_PACKAGE   [format; full: the whole workspace]
. "$(dirname "$0")/lib.sh"
NAME=cargo
need cargo git
PACKAGE=${CARGO_PACKAGE:-$(by_scale format '')}
begin cargo

git -C "$ROOT" ls-files -z | (cd "$ROOT" && xargs -0 cp --parents -t "$DIR")
cd "$DIR"
CARGO_TARGET_DIR=$DIR/target cargo build --quiet ${PACKAGE:+-p "$PACKAGE"}
cd /
cycle_pool
cd "$DIR"
# Nothing may look changed: times and contents are as they were.
CARGO_TARGET_DIR=$DIR/target cargo build ${PACKAGE:+-p "$PACKAGE"} 2>&1 | tee "$WORK/again" >&2
! grep -q Compiling "$WORK/again" || fail "cargo builds again what is built"
cd /
finish
