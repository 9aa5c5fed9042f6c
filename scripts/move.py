#!/usr/bin/env python3
"""A load of names on a fileset that moves: files are made, renamed, read, linked and removed, and one is held open.

usage: move.py DIRECTORY STOP: works until STOP is there; prints what it did, and how long the slowest call took.
Any difference, and any error, ends it with a message.
"""

import os
import sys
import time


def main() -> int:
    directory, stop = sys.argv[1:]
    work = os.path.join(directory, "names")
    os.mkdir(work)
    held = os.open(os.path.join(work, "held"), os.O_RDWR | os.O_CREAT, 0o600)
    number = os.fstat(held).st_ino
    handle = os.open(work, os.O_RDONLY)
    slowest = 0.0
    rounds = 0
    length = 0
    known: dict[str, bytes] = {}

    def timed(call, *arguments, **named):
        nonlocal slowest
        begun = time.monotonic()
        result = call(*arguments, **named)
        slowest = max(slowest, time.monotonic() - begun)
        return result

    while not os.path.exists(stop):
        rounds += 1
        name = os.path.join(work, f"f{rounds % 200}")
        data = os.urandom(1) * (1 + rounds * 131 % 9000)
        file = timed(os.open, name + ".new", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        timed(os.write, file, data)
        if rounds % 10 == 0:
            timed(os.fsync, file)
        os.close(file)
        timed(os.rename, name + ".new", name)
        known[name] = data
        if rounds % 7 == 0:
            gone = next(iter(known))
            timed(os.unlink, gone)
            del known[gone]
        if rounds % 5 == 0:
            timed(os.pwrite, held, b"x" * 100, length)
            length += 100
        status = timed(os.fstat, held)
        if (status.st_ino, status.st_size) != (number, length):
            sys.exit(f"the file that is open is {status}, not of number {number} and {length} bytes")
        other = list(known)[rounds * 17 % len(known)]
        with open(other, "rb") as file:
            if timed(file.read) != known[other]:
                sys.exit(f"{other} is not what was written")
        if rounds % 50 == 0:
            names = set(timed(os.listdir, handle)) - {"held"}
            if names != {os.path.basename(name) for name in known}:
                sys.exit(f"the directory has other names: {sorted(names)[:5]}...")
    if os.pread(held, length + 1, 0) != b"x" * length:
        sys.exit("the file that is open is not what was written")
    print(f"{rounds} rounds of names, the slowest call {slowest * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
