#!/usr/bin/env bash
# NFS by libnfs, a client of another house: a tree that was imported is listed and read whole, and files are copied
# in, while the server is killed again and again; then all of it is compared, and the pool checked.
. "$(dirname "$0")/lib.sh"
NAME=nfs
need nfs-ls nfs-cp nfs-cat cmp diff
find_program
WORK=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/holdfast-nfs.XXXXXX")}
mkdir -p "$WORK/tree" "$WORK/in"
SERVER= LOAD=
trap 'touch "$WORK/over"; kill -9 $SERVER $LOAD 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$WORK"' EXIT
POOL=$WORK/pool.hf
KILLS=${NFS_KILLS:-$(by_scale 3 20)}
FILES=${NFS_FILES:-$(by_scale 1500 20000)}
READ=${NFS_READ:-$(by_scale 50 1000)}

# Serves the pool at a free port, or at the one of the last life.
serve() {
    : >"$WORK/told"
    "$HOLDFAST" serve "$POOL" --nfs "127.0.0.1:${PORT:-0}" --export /a:rw,squash=none,insecure \
        >"$WORK/told" 2>>"$WORK/log" &
    SERVER=$!
    for _ in $(seq 300); do
        grep -q 'mount -t nfs' "$WORK/told" && break
        sleep 0.1
    done
    PORT=$(sed -n 's/.*,port=\([0-9]*\),.*/\1/p' "$WORK/told")
    [ -n "$PORT" ] || fail "the server does not answer: $(cat "$WORK/log")"
}

url() { echo "nfs://127.0.0.1/a/$1?nfsport=$PORT&mountport=$PORT"; }

# Prints how often the server has begun to die or come back: what went on while that changed is promised nothing, for
# libnfs does not write again what it had not committed.
lives() { cat "$WORK/lives"; }
turn() { echo $(($(lives) + 1)) >"$WORK/lives.new"; mv "$WORK/lives.new" "$WORK/lives"; }

# Lists all, as `SIZE PATH` of each file of the tree.
list() { timeout 120 nfs-ls -R "$(url '')" >"$WORK/ls.$1" 2>/dev/null && awk '/^-/ {print $5, $6}' "$WORK/ls.$1" |
    grep ' .*leaf' | sort >"$WORK/list.$1"; }

echo 0 >"$WORK/lives"
for number in $(seq "$FILES"); do
    directory=$WORK/tree/d$((number % 20))/e$((number % 7))
    [ "$number" -gt 140 ] || mkdir -p "$directory"
    head -c $((number % 3000)) /dev/zero | tr '\0' "$((number % 10))" >"$directory/leaf$number"
done
(cd "$WORK/tree" && find . -type f -printf '%s %f\n' | sort) >"$WORK/names"
"$HOLDFAST" create "$POOL" --size 1G >/dev/null
"$HOLDFAST" copy-in "$WORK/tree" "$POOL" >"$WORK/imported" 2>&1 || fail "no import: $(cat "$WORK/imported")"
head -c 300000 /dev/urandom >"$WORK/bytes"
serve

# Copies files in, and lists all, until it is over.
(
    number=0
    while [ ! -e "$WORK/over" ]; do
        number=$((number + 1)) before=$(lives)
        tail -c $((1000 + number * 997 % 299000)) "$WORK/bytes" >"$WORK/in/f$number"
        if timeout 60 nfs-cp "$WORK/in/f$number" "$(url "f$number")" >/dev/null 2>&1 && [ "$before" = "$(lives)" ]; then
            echo "f$number" >>"$WORK/promised"
        else
            echo "f$number" >>"$WORK/cut"
        fi
    done
) &
LOAD=$!
(
    while [ ! -e "$WORK/over" ]; do
        before=$(lives)
        if list meanwhile && [ "$before" = "$(lives)" ]; then
            awk '{print $1, $2}' "$WORK/list.meanwhile" | sed 's|[^ ]*/||' | sort | cmp -s - "$WORK/names" ||
                echo "a listing differs" >>"$WORK/wrong"
            echo one >>"$WORK/listed"
        fi
    done
) &
LOAD="$LOAD $!"
for _ in $(seq "$KILLS"); do
    sleep "0.$((RANDOM % 5 + 4))"
    turn
    kill -9 "$SERVER"; wait "$SERVER" 2>/dev/null || true
    serve
    turn
done
sleep 2
touch "$WORK/over"
# shellcheck disable=SC2086
wait $LOAD
LOAD=
[ ! -e "$WORK/wrong" ] || fail "$(sort "$WORK/wrong" | uniq -c)"
promised=$(wc -l <"$WORK/promised")
cut=$(wc -l <"$WORK/cut" 2>/dev/null || echo 0)
listed=$(wc -l <"$WORK/listed" 2>/dev/null || echo 0)
[ "$promised" -gt "$KILLS" ] || fail "only $promised files were copied"

list end || fail "the tree is not listed"
sed 's|[^ ]*/||' "$WORK/list.end" | sort | cmp - "$WORK/names" || fail "the listing differs"
(cd "$WORK/tree" && find . -type f | shuf -n "$READ" --random-source="$WORK/bytes") | while read -r path; do
    nfs-cat "$(url "${path#./}")" | cmp - "$WORK/tree/$path" || fail "$path differs"
done
while read -r name; do
    nfs-cat "$(url "$name")" | cmp - "$WORK/in/$name" || fail "$name differs after the server died"
done <"$WORK/promised"
kill -TERM "$SERVER"
wait "$SERVER" || fail "the server did not close its pool"
"$HOLDFAST" copy-out "$POOL" "$WORK/out" >"$WORK/exported" 2>&1 || fail "no export: $(cat "$WORK/exported")"
for directory in "$WORK/tree"/*; do
    diff -r "$directory" "$WORK/out/${directory##*/}" || fail "the tree differs"
done
"$HOLDFAST" check "$POOL" >"$WORK/check" 2>&1 || fail "the pool is damaged: $(cat "$WORK/check")"
say "$KILLS kills; copied $promised files ($cut were cut), listed $FILES $((listed + 1)) times, read and compared all"
