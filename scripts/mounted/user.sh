#!/usr/bin/env bash
# A user who is not root makes, mounts, uses and unmounts a pool, by way of fusermount3; a mount whose
# server died is replaced, and what the user may not do is refused.
#
# Runs as root, as the user nobody, in a mount namespace of its own, where /dev/fuse is open to all
# as it is on most systems.
. "$(dirname "$0")/lib.sh"
NAME=user
USER_NAME=nobody
if [ "${1:-}" != --inside ]; then
    is_ours || skip "there is no server of a user here"
    need fusermount3 runuser unshare mknod
    [ "$(id -u)" = 0 ] || skip "it needs root, to be another user"
    getent passwd "$USER_NAME" >/dev/null || skip "there is no user $USER_NAME"
    [ -u "$(readlink -f "$(command -v fusermount3)")" ] || skip "fusermount3 is not setuid"
    [ -c /dev/fuse ] || skip "there is no /dev/fuse"
    unshare --mount true 2>/dev/null || skip "there are no mount namespaces"
    find_program
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-user.XXXXXX")
    trap 'rm -rf "$WORK"' EXIT
    # The program may lie where the user can't reach it.
    install -m 755 "$HOLDFAST" "$WORK/holdfast"
    mkdir "$WORK/home"
    chown "$USER_NAME" "$WORK/home"
    chmod 755 "$WORK"
    mknod -m 666 "$WORK/fuse" c 10 229 2>/dev/null || skip "device nodes can't be made here"
    code=0
    # shellcheck disable=SC2016  # The inner shell expands.
    unshare --mount --propagation private bash -c '
        mount --bind "$1/fuse" /dev/fuse || exit 77
        runuser -u "$2" -- env HOME="$1/home" HOLDFAST="$1/holdfast" WORK="$1/home/work" TMPDIR="$1/home" \
            bash "$3" --inside' - "$WORK" "$USER_NAME" "$(readlink -f "$0")" || code=$?
    [ "$code" != 77 ] || skip "/dev/fuse can't be opened in a namespace"
    exit "$code"
fi

POOL_SIZE=64M
begin user
[ "$(id -un)" = "$USER_NAME" ] || fail "this is $(id -un)"
grep -q " $MOUNT fuse.holdfast .*nosuid,nodev.*user_id=$(id -u)" /proc/mounts \
    || fail "mounted as: $(grep " $MOUNT " /proc/mounts)"
printf kept >"$DIR/kept"
[ "$(stat -c %U "$MOUNT" "$DIR/kept" | sort -u)" = "$USER_NAME" ] || fail "it is not the user's"
"$HOLDFAST" status "$MOUNT" >"$WORK/status" || fail "the status is refused"
grep -q '^  health: ok' "$WORK/status" || fail "the status says: $(head -n 3 "$WORK/status")"
code=0
"$HOLDFAST" mount "$POOL" "$MOUNT" --daemon 2>"$WORK/second" || code=$?
[ "$code" = 1 ] || fail "a second mount ends with $code"

cycle_pool
[ "$(cat "$DIR/kept")" = kept ] || fail "what was written is lost by a remount"
kill_server
mount_pool
[ "$(cat "$DIR/kept")" = kept ] || fail "a dead mount was not replaced"
say "made, mounted, killed, mounted again"

unmount_pool
if ! grep -q '^user_allow_other' /etc/fuse.conf 2>/dev/null; then
    ! "$HOLDFAST" mount "$POOL" "$MOUNT" --daemon -o allow_other 2>"$WORK/refused" >/dev/null \
        || fail "allow_other is not the user's to give"
    grep -q user_allow_other "$WORK/refused" || fail "it says: $(head -n 1 "$WORK/refused")"
fi
! "$HOLDFAST" mount "$POOL" /mnt --daemon 2>"$WORK/refused" >/dev/null || fail "/mnt is not the user's"
MOUNT_FLAGS="-o suid,dev" mount_pool
grep -q " $MOUNT fuse.holdfast .*nosuid,nodev" /proc/mounts || fail "a user's mount has setuid files"
say "what is not the user's to do is refused"
finish
