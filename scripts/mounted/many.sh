#!/usr/bin/env bash
# Very many files, in one directory and in a tree: made, listed, renamed, removed.
#
#   MANY_FILES   in each [20,000; full: 1,000,000]
. "$(dirname "$0")/lib.sh"
NAME=many
need perl
FILES=${MANY_FILES:-$(by_scale 20000 1000000)}
begin many

# Runs a command and says how long it took.
timed() {
    local what=$1 start
    shift
    start=$(date +%s%N)
    "$@"
    say "$what: $((($(date +%s%N) - start) / 1000000)) ms"
}

# make DIRECTORY FILES-A-DIRECTORY
make() {
    perl -e '
        my ($top, $count, $each) = @ARGV;
        mkdir $top or die "$top: $!";
        for my $n (0 .. $count - 1) {
            my $dir = $each < $count ? sprintf("%s/%06d", $top, $n / $each) : $top;
            mkdir $dir or die "$dir: $!" if $each < $count && $n % $each == 0;
            open my $f, ">", "$dir/f$n" or die "$dir/f$n: $!";
            close $f or die "$dir/f$n: $!";
        }' "$1" "$FILES" "$2"
}

# count DIRECTORY EXPECTED PATTERN
count() {
    local found
    found=$(find "$1" -type f -name "$3" | wc -l)
    [ "$found" = "$2" ] || fail "$1: $found files named $3, not $2"
    found=$(find "$1" -type f -name "$3" | sort | uniq -d | wc -l)
    [ "$found" = 0 ] || fail "$1: $found names are listed twice"
}

rename_all() {
    find "$1" -type f -name 'f*' -print0 \
        | perl -0ne 'chomp; my $to = $_; $to =~ s{/f(\d+)$}{/g$1}; rename $_, $to or die "$_: $!"'
}

run() {
    local what=$1 each=$2
    timed "$what: make $FILES" make "$DIR/$what" "$each"
    timed "$what: list" count "$DIR/$what" "$FILES" 'f*'
    say "$what: memory of the server $(server_memory)"
    cycle_pool
    timed "$what: list, cold" count "$DIR/$what" "$FILES" 'f*'
    timed "$what: rename" rename_all "$DIR/$what"
    count "$DIR/$what" "$FILES" 'g*'
    count "$DIR/$what" 0 'f*'
    timed "$what: remove" rm -r "$DIR/$what"
    say "$what: memory of the server, after a remount $(server_memory)"
    [ ! -e "$DIR/$what" ] || fail "$what is still there"
}

run flat "$FILES"
run tree 1000
finish
