#!/bin/bash
# Runs the blocks of a document, or of one of its procedures:
#   session.sh WORK PROGRAM SOURCES PROCEDURE BLOCK...
# The test calls it in namespaces of its own for mounts, processes and the network. In them /srv,
# /home, /mnt, /media, /run, /etc, /var/lib and /dev are directories below WORK; disks are loop
# devices, or sparse files where there are none.
set -euo pipefail
work=$1 program=$2 sources=$3 procedure=$4
shift 4

# Mounts of others that came into the namespace would be listed by `status`, and would stay alive here
# after they are unmounted outside.
mapfile -t mounts </proc/self/mounts
for ((at = ${#mounts[@]} - 1; at >= 0; at--)); do
    read -r _ directory type _ <<<"${mounts[at]}"
    # One below another has gone with it.
    case $type in fuse | fuse.*) umount --lazy -- "$(printf %b "$directory")" || true ;; esac
done

ip link set lo up
mkdir -p "$work"/{srv,home,mnt,media,run,lib,etc,dev,bin,here}
cp -a /etc/. "$work/etc"
echo 'ann:x:1000:1000::/home/ann:/bin/sh' >"$work/etc/passwd.new"
grep -v '^[^:]*:[^:]*:1000:' "$work/etc/passwd" >>"$work/etc/passwd.new"
mv "$work/etc/passwd.new" "$work/etc/passwd"

# disk PATH SIZE: makes a disk, which goes with the last process of the session.
disk() {
    truncate -s "$2" "$work/$(basename "$1").image"
    local loop
    if loop=$(losetup --find --show "$work/$(basename "$1").image" 2>/dev/null); then
        local hold
        exec {hold}<"$loop"
        losetup --detach "$loop"
        mknod "$work/dev/$(basename "$1")" b $((0x$(stat -c %t "$loop"))) $((0x$(stat -c %T "$loop")))
    else
        ln -s "$work/$(basename "$1").image" "$work/dev/$(basename "$1")"
    fi
}
# Disks are those that the blocks name.
mount -t tmpfs none "$work/dev"
for path in $(cat "$@" | grep -o '/dev/\(sd[A-Za-z]\|nvme[0-9a-z]*\)\b' | sort -u); do
    disk "$path" 1G
done
for node in null zero full random urandom tty fuse; do
    cp -a "/dev/$node" "$work/dev/"
done
ln -s /proc/self/fd "$work/dev/fd"
ln -s /proc/self/fd/1 "$work/dev/stdout"
for pair in srv=srv home=home mnt=mnt media=media run=run lib=var/lib etc=etc dev=dev; do
    mount --bind "$work/${pair%%=*}" "/${pair#*=}"
done

# A server, and what shows without end, would not return.
cat >"$work/bin/holdfast" <<END
#!/bin/bash
case " \$* " in
    *" --check "*) ;;
    " serve "*)
        said=\$(mktemp -p "$work")
        setsid "$program" "\$@" >"\$said" 2>&1 </dev/null &
        for _ in \$(seq 200); do
            "$program" status --json 2>/dev/null | grep -q "\"pid\":\$!\b" && exit 0
            kill -0 \$! 2>/dev/null || break
            sleep 0.05
        done
        cat "\$said" >&2
        exit 1 ;;
    " top "* | " trace "*)
        timeout -s INT 2 "$program" "\$@" </dev/null || [ \$? = 124 ]
        exit ;;
esac
exec "$program" "\$@"
END
# The other machine is this one.
printf '#!/bin/bash\nshift\nexec bash -c "$*"\n' >"$work/bin/ssh"
chmod +x "$work"/bin/*
export PATH=$work/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$work/here
unset HOLDFAST_RUN_DIR
cd "$work/here"

pool() {
    holdfast create pool.hf --size 1G
    holdfast fileset create pool.hf:home
    mkdir -p tree/{ann,films,src/kernel}
    echo text >tree/file
    holdfast copy-in tree pool.hf:home
    holdfast snapshot create pool.hf:home@monday
}
mirror() { holdfast create --group mirror:d0.hf,d1.hf --size 512M; }
raid5() { holdfast create --group raid5:r0.hf,r1.hf,r2.hf --size 1G; }
stripe() { holdfast create --group stripe:s0.hf,s1.hf --size 1G; }
configured() {
    mkdir -p /etc/holdfast
    printf '[[pool]]\npath = "/srv/pool.hf"\n%s\n' "$1" >/etc/holdfast/holdfast.toml
    holdfast create /srv/pool.hf --size 1G
    holdfast fileset create /srv/pool.hf:home
}

# What is there before each procedure.
prepare() {
    case $procedure in
        'Mount a pool') pool; mkdir /srv/monday ;;
        'Find and rename pools')
            holdfast create /dev/sdX --name tank
            holdfast fileset create tank:home ;;
        'Mount at boot')
            configured $'[[mount]]\npool = "/srv/pool.hf"\nfileset = "home"\ndirectory = "/home"' ;;
        'Mount a fileset several times') pool; mkdir -p /srv/chroot/home ;;
        'Change the options of a mount') pool; holdfast mount pool.hf:home /home --daemon ;;
        'Unmount a pool')
            pool
            holdfast fileset create pool.hf:mail
            holdfast mount pool.hf /mnt --daemon
            holdfast mount pool.hf:home /home
            holdfast mount pool.hf:mail /media ;;
        'Clear a mount whose server is gone')
            pool
            holdfast mount pool.hf:home /mnt --daemon
            kill -9 "$(holdfast status /mnt --json | grep -o '"pid":[0-9]*' | cut -d: -f2)"
            sleep 0.2 ;;
        'Discard free space' | 'One pool, several machines') holdfast create /dev/sdX ;;
        'Create a fileset' | 'Limit a fileset') holdfast create pool.hf --size 16G ;;
        'Rename or delete a fileset')
            pool
            holdfast snapshot delete pool.hf:home@monday --wait
            holdfast fileset create pool.hf:home/ann
            holdfast mount pool.hf /mnt --daemon ;;
        'Look at the disks') pool; holdfast mount pool.hf:home /mnt --daemon ;;
        'Moving a fileset to another pool')
            pool
            holdfast snapshot delete pool.hf:home@monday --wait
            holdfast create big.hf --size 1G ;;
        'Take a snapshot and look into it')
            pool
            holdfast snapshot delete pool.hf:home@monday --wait
            holdfast mount pool.hf:home /home --daemon ;;
        'Take snapshots by schedule' | 'See the load') pool; holdfast serve pool.hf --nfs 127.0.0.1:2049 ;;
        'See what changed') pool; holdfast snapshot create pool.hf:home@tuesday ;;
        'Restore a file or a fileset') pool; holdfast mount pool.hf:home /home --daemon ;;
        'Backup: send and receive')
            pool
            holdfast snapshot delete pool.hf:home@monday --wait
            holdfast create /srv/vault.hf --size 1G ;;
        'Copy files in and out') pool; cp -r tree /srv/old ;;
        'Replace a failed disk') mirror; holdfast device fail d0.hf d1.hf ;;
        'Exchange a healthy disk')
            mirror; raid5; stripe ;;
        'Bring a disk back') mirror; holdfast device fail d0.hf d1.hf ;;
        'Keep a spare') mirror ;;
        'Scrub') mirror; holdfast serve d0.hf --nfs 127.0.0.1:2049 ;;
        'Add or remove a copy of a mirror') pool ;;
        'Widen or narrow a raid5 or stripe') raid5; stripe ;;
        'Put metadata or the journal on fast disks')
            holdfast create pool.hf --size 1G
            holdfast mount pool.hf /mnt --daemon ;;
        'Say where data goes')
            pool
            holdfast group add pool.hf mirror:m0.hf,m1.hf=data --size 1G
            holdfast mount pool.hf:home /home --daemon ;;
        'Open a pool with missing disks') mirror; mkdir away; mv d1.hf away ;;
        'Join two halves that were opened apart')
            mirror
            mkdir away
            for other in d1.hf d0.hf; do
                mv "$other" away
                holdfast mount d?.hf /mnt --daemon --accept-missing
                date >/mnt/$other
                holdfast unmount /mnt
                mv "away/$other" .
            done ;;
        'Export by NFS') pool; holdfast fileset create pool.hf:mail ;;
        'Configure a server')
            holdfast create /srv/pool.hf --size 1G
            holdfast fileset create /srv/pool.hf:home
            holdfast fileset create /srv/pool.hf:mail
            cp "$sources"/crates/server/src/hub/http/testing/{cert,key}.pem /etc/holdfast/
            holdfast serve --config /etc/holdfast/holdfast.toml ;;
        'Get notices')
            configured $'nfs = "127.0.0.1:2049"\n[[notify]]\ncommand = ["true"]'
            sed -i '/^nfs/d; 1i nfs = "127.0.0.1:2049"' /etc/holdfast/holdfast.toml
            holdfast serve --config /etc/holdfast/holdfast.toml ;;
        'After a failed write')
            # The file system of the pool's file is full for a time.
            mount -t tmpfs -o size=64M none "$work/here"
            cd "$work/here"
            holdfast create pool.hf --size 1G
            holdfast mount pool.hf /mnt --daemon
            dd if=/dev/zero of=filler bs=64K 2>/dev/null || true
            dd if=/dev/zero of=/mnt/file bs=1M count=80 conv=fsync 2>/dev/null || true
            rm filler ;;
        'Inspect the bytes')
            pool
            holdfast create other.hf --size 1G
            holdfast mount other.hf /mnt --daemon
            cp tree/file /mnt/file ;;
        'Create a pool' | *.md) ;;
        *) pool ;;
    esac
}

for block; do
    [ "${block##*.}" = toml ] || continue
    mkdir -p /etc/holdfast
    cp "$block" /etc/holdfast/holdfast.toml
done
prepare >"$work/prepared" 2>&1 || { cat "$work/prepared"; echo "*** the preparation failed"; exit 1; }
for block; do
    [ "${block##*.}" = sh ] || continue
    # A comment `# exit 1` says what a command ends with. A server is waited for.
    sed -E -e 's/^(holdfast serve .*) &$/\1/' \
        -e 's/^(.*[^ ]) +# exit ([0-9]+).*/rc=0; \1 || rc=$?; [ $rc = \2 ]/' "$block" >"$work/block"
    bash -euxo pipefail "$work/block" 2>&1 || { echo "*** ended with $?"; exit 1; }
done
