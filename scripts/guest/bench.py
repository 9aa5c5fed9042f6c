#!/usr/bin/env python3
"""The guest's side of bench-nfs.sh: what the kernel's client takes of each server, in turns.

Writes lines of measure, server and microseconds to /host/times. Only the phase itself is timed.
"""

import os
import subprocess
import time

HOST = os.environ["HOST_IP"]
FILES, STREAM_MIB, ROUNDS = (int(os.environ[name]) for name in ("FILES", "STREAM_MIB", "ROUNDS"))
SERVERS = {
    "holdfast": (2049, 2049, "/sync"),
    "async": (2049, 2049, "/async"),
    "ganesha": (2050, 2051, os.environ["PLAIN"]),
    "dirsync": (2050, 2051, os.environ["DIRSYNC"]),
    "null": (2052, 2052, "/"),
}
PAGE = os.urandom(4096)
MEBI = os.urandom(1 << 20)


def mount(who):
    port, mountport, export = SERVERS[who]
    # Two exports of one pool would share a cache, which would outlive the mount of one.
    options = f"vers=3,tcp,nolock,nosharecache,port={port},mountport={mountport}"
    os.makedirs(f"/mnt/{who}", exist_ok=True)
    subprocess.run(["mount", "-t", "nfs", "-o", options, f"{HOST}:{export}", f"/mnt/{who}"], check=True)


def cold(who):
    """Nothing of what was written is in a cache of the client's or of the host's kernel."""
    subprocess.run(["umount", f"/mnt/{who}"], check=True)
    mount(who)
    open("/host/cold", "w").close()
    while os.path.exists("/host/cold"):
        time.sleep(0.1)


def create(directory):
    for number in range(FILES):
        os.close(os.open(f"{directory}/f{number}", os.O_WRONLY | os.O_CREAT, 0o644))


def write(directory):
    for number in range(FILES):
        file = os.open(f"{directory}/w{number}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, PAGE)
        os.close(file)


def stat(directory):
    for number in range(FILES):
        os.stat(f"{directory}/f{number}")


def unlink(directory):
    for number in range(FILES):
        os.unlink(f"{directory}/f{number}")


def stream_in(directory):
    file = os.open(f"{directory}/stream", os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(STREAM_MIB):
        os.write(file, MEBI)
    os.fsync(file)
    os.close(file)


def stream_out(directory):
    file = os.open(f"{directory}/stream", os.O_RDONLY)
    count = 0
    while data := os.read(file, 1 << 20):
        count += len(data)
    os.close(file)
    assert count == STREAM_MIB << 20, f"a stream of {count} bytes"


def main():
    for who in SERVERS:
        mount(who)
    with open("/host/times", "w") as times:
        for turn in range(ROUNDS):
            order = list(SERVERS)
            for who in order[turn % len(order) :] + order[: turn % len(order)]:
                directory = f"/mnt/{who}/round{turn}"
                os.mkdir(directory)
                phases = [create, write, cold, stat, unlink, stream_in, cold, stream_out]
                for phase in phases:
                    if phase is cold:
                        cold(who)
                        continue
                    begun = time.monotonic()
                    phase(directory)
                    spent = int((time.monotonic() - begun) * 1_000_000)
                    times.write(f"{phase.__name__}\t{who}\t{spent}\n")
                for name in os.listdir(directory):
                    os.unlink(f"{directory}/{name}")
                os.rmdir(directory)


main()
