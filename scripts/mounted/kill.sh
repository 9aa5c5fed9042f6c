#!/usr/bin/env bash
# kill -9 of the server under load, again and again: nothing that was fsynced is lost, the mount
# point never hangs, the pool checks clean.
#
#   KILL_ROUNDS    [3; full: 100]        KILL_WRITERS   [4]
#
# With TARGET_DIR the writers are killed and not the server.
. "$(dirname "$0")/lib.sh"
NAME=kill
need perl
ROUNDS=${KILL_ROUNDS:-$(by_scale 3 100)}
WRITERS=${KILL_WRITERS:-4}
begin kill

# Writes files without end: fsync, then rename every third, then fsync of the directory; then notes
# name and content outside the pool. Some files are removed and noted as removed.
writer() {
    exec perl -e '
        use strict; use warnings; use IO::Handle; use Digest::MD5 "md5_hex";
        my ($dir, $notes, $round, $id) = @ARGV;
        open my $note, ">>", $notes or die; $note->autoflush(1);
        srand($round * 100 + $id);
        for (my $n = 0;; $n++) {
            my $name = "r$round-w$id-$n";
            my $data = join ",", map { int rand 1e9 } 1 .. 1 + int rand 3000;
            open my $f, ">", "$dir/$name" or die "$name: $!";
            syswrite($f, $data) == length $data or die "$name: $!";
            $f->sync or die "$name: $!";
            close $f or die "$name: $!";
            if ($n % 3 == 2) { rename "$dir/$name", "$dir/$name.moved" or die; $name .= ".moved" }
            open my $d, "<", $dir or die; $d->sync or die "$dir: $!"; close $d;
            print $note "there $name ", md5_hex($data), "\n";
            if ($n % 5 == 4) {
                # Noted before, because a removal that is not yet durable may or may not hold.
                print $note "maybe $name\n";
                unlink "$dir/$name" or die "$name: $!";
                open $d, "<", $dir or die; $d->sync or die; close $d;
                print $note "gone $name\n";
            }
        }' "$DIR" "$WORK/notes.$2" "$1" "$2"
}

verify() {
    perl -e '
        use strict; use warnings; use Digest::MD5;
        my $dir = shift; my %want;
        while (<>) {
            my ($what, $name, $sum) = split;
            next unless /\n\z/;                      # cut off by the kill
            if ($what eq "there") { $want{$name} = $sum } else { $want{$name} = $what }
        }
        my ($there, $gone) = (0, 0);
        for my $name (keys %want) {
            next if $want{$name} eq "maybe";
            if ($want{$name} eq "gone") {
                die "$name was removed and is back\n" if -e "$dir/$name";
                $gone++; next;
            }
            open my $f, "<", "$dir/$name" or die "$name was fsynced and is lost: $!\n";
            my $sum = Digest::MD5->new->addfile($f)->hexdigest;
            die "$name was fsynced and has other bytes\n" if $sum ne $want{$name};
            $there++;
        }
        print "$there files there, $gone gone, as acknowledged\n";
    ' "$DIR" "$WORK"/notes.*
}

for round in $(seq "$ROUNDS"); do
    pids=()
    for id in $(seq "$WRITERS"); do
        writer "$round" "$id" 2>/dev/null &
        pids+=($!)
    done
    sleep "0.$((2 + RANDOM % 8))"
    if is_ours; then kill_server; else kill -9 "${pids[@]}" 2>/dev/null || true; fi
    # Writers end with the error that the dead server leaves them; none may hang.
    for pid in "${pids[@]}"; do
        for _ in $(seq 500); do is_running "$pid" || break; sleep 0.02; done
        is_running "$pid" && fail "a writer hangs after kill -9"
        wait "$pid" 2>/dev/null || true
    done
    remount_pool
    verdict=$(verify) || fail "round $round: something acknowledged is lost"
    if [ "$((round % 10))" = 0 ] || [ "$round" = "$ROUNDS" ]; then
        cycle_pool
        say "round $round: $verdict"
        # The next rounds begin anew: each verifies all that was written since.
        find "$DIR" -mindepth 1 -delete
        rm "$WORK"/notes.*
    fi
done
finish
