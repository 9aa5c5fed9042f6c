#!/usr/bin/env bash
# pjdfstest: what POSIX says of names, owners, modes and times, one system call at a time, as root
# and as other users. What fails must stand in the list below, each with its reason in
# docs/SEMANTICS.md.
. "$(dirname "$0")/lib.sh"
NAME=pjdfstest
PJDFSTEST=$(command -v "$ROOT/target/tools/bin/pjdfstest" || command -v pjdfstest || true)
[ -n "$PJDFSTEST" ] || skip "pjdfstest is not installed: cargo install pjdfstest --version 0.2.2 --root target/tools"
[ "$(id -u)" = 0 ] || skip "it needs root, to be other users"
getent passwd nobody daemon >/dev/null || skip "there are no users nobody and daemon"
begin pjdfstest

# Tests that may fail, as pjdfstest names them.
EXPECTED=(
)

{
    echo '[features]'
    echo 'posix_fallocate = {}'
    echo 'rename_ctime = {}'
    echo 'utime_now = {}'
    echo 'utimensat = {}'
    echo 'stat_st_birthtime = {}'
    echo '[settings]'
    # Longer than any resolution of times.
    echo 'naptime = 0.01'
    printf 'expected_failures = ['
    [ ${#EXPECTED[@]} = 0 ] || printf '"%s", ' "${EXPECTED[@]}"
    echo ']'
    echo '[dummy_auth]'
    # Two users who may do nothing, whom every Debian has.
    echo 'entries = [["nobody", "nogroup"], ["daemon", "daemon"]]'
} >"$WORK/pjdfstest.toml"
# Others than root must reach the directory.
chmod 755 "$WORK" "$DIR"
code=0
timeout "${PJDFSTEST_TIMEOUT:-600}" "$PJDFSTEST" -c "$WORK/pjdfstest.toml" -p "$DIR" -s "$WORK" >"$WORK/pjdfstest.log" 2>&1 || code=$?
# One line a test: its name, then "ok", "skipped" or "failed"; what it said comes after it.
grep -vE ' ok$' "$WORK/pjdfstest.log" | grep -v '^$' | head -100 || true
[ "$code" = 0 ] || fail "pjdfstest ends with $code"
finish
