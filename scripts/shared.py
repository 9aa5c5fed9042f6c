#!/usr/bin/env python3
"""Several fronts of one fileset: does each see what the others have done?

    shared.py rounds  FRONT FRONT [--rounds N]     what is closed is seen by who opens; nothing is older than 1.1 s
    shared.py load    DIR DIR [--seconds S]        makes, reads, writes, maps and removes the same files, without end
    shared.py check   DIR DIR                      both show the same tree
    shared.py locks   DIR DIR [--rounds N]         a counter and a SQLite database that all raise under locks

A FRONT is a directory, or nfs:PORT:EXPORT for NFSv3 on this machine, by a client of its own (RFC 1813, RFC 5531).
Exits with 1, and says what was wrong, at the first answer that is older than it may be.
"""

import argparse
import errno
import fcntl
import mmap
import os
import random
import shlex
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import time

# How old an answer may be that nobody has opened anything for: the kernel keeps it for a second.
BEHIND_MAX = 1.1
FILE_SYNC = 2
NFS3ERR_NOENT = 2


class Wrong(Exception):
    """What is not as it must be."""


class Directory:
    """A front that is mounted."""

    def __init__(self, path):
        self.path = path

    def at(self, name):
        return os.path.join(self.path, name)

    def put(self, name, data):
        with open(self.at(name), "wb") as file:
            file.write(data)

    def append(self, name, data):
        with open(self.at(name), "ab") as file:
            file.write(data)

    def map_in(self, name, data):
        """Writes `data` to the front of a file of at least a page, by a mapping."""
        with open(self.at(name), "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            mapping[: len(data)] = data

    def get(self, name):
        try:
            with open(self.at(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace(self, name, by):
        os.rename(self.at(by), self.at(name))

    def remove(self, name):
        os.unlink(self.at(name))

    def make_directory(self, name):
        os.mkdir(self.at(name))

    def names(self, name):
        return sorted(os.listdir(self.at(name)))

    def size(self, name):
        return os.stat(self.at(name)).st_size


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


class Reply:
    def __init__(self, data):
        self.data, self.at = data, 0

    def u32(self):
        (word,) = struct.unpack_from(">I", self.data, self.at)
        self.at += 4
        return word

    def u64(self):
        return self.u32() << 32 | self.u32()

    def opaque(self):
        length = self.u32()
        data = self.data[self.at : self.at + length]
        self.at += length + -length % 4
        return data

    def size(self):
        """Attributes that may follow; of them the size."""
        if self.u32() == 0:
            return None
        (size,) = struct.unpack_from(">Q", self.data, self.at + 20)
        self.at += 84
        return size


class Nfs:
    """A front that is reached over NFSv3."""

    def __init__(self, port, export):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.xid = 0
        reply = self.call(100005, 1, opaque(export.encode()))
        if reply.u32() != 0:
            raise Wrong(f"{export} is not exported")
        self.root = reply.opaque()

    def call(self, program, procedure, args):
        self.xid += 1
        credentials = opaque(struct.pack(">IIIII", 0, 0, 0, 0, 0))
        head = struct.pack(">IIIIIII", self.xid, 0, 2, program, 3, procedure, 1)
        record = head + credentials + struct.pack(">II", 0, 0) + args
        self.socket.sendall(struct.pack(">I", 1 << 31 | len(record)) + record)
        (mark,) = struct.unpack(">I", self.read(4))
        reply = Reply(self.read(mark & 0x7FFFFFFF))
        if (reply.u32(), reply.u32(), reply.u32()) != (self.xid, 1, 0):
            raise Wrong(f"procedure {procedure} is refused")
        reply.u32(), reply.opaque()
        if reply.u32() != 0:
            raise Wrong(f"procedure {procedure} is not done")
        return reply

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise Wrong("the server has hung up")
            data += more
        return data

    def nfs(self, procedure, args):
        reply = self.call(100003, procedure, args)
        status = reply.u32()
        if status == NFS3ERR_NOENT:
            return None
        if status != 0:
            raise Wrong(f"procedure {procedure}: status {status}")
        return reply

    def find(self, name):
        """Handle and size of what a path leads to."""
        handle, size = self.root, None
        for part in name.split("/"):
            reply = self.nfs(3, opaque(handle) + opaque(part.encode()))
            if reply is None:
                return None, None
            handle, size = reply.opaque(), reply.size()
        return handle, size

    def place(self, name):
        directory, _, last = name.rpartition("/")
        handle = self.find(directory)[0] if directory else self.root
        return opaque(handle) + opaque(last.encode())

    def write(self, handle, offset, data):
        head = struct.pack(">QII", offset, len(data), FILE_SYNC)
        self.nfs(7, opaque(handle) + head + opaque(data))

    def put(self, name, data):
        # To make it, and to cut it: mode is set, size is 0.
        reply = self.nfs(8, self.place(name) + struct.pack(">IIIIIIQII", 0, 1, 0o644, 0, 0, 1, 0, 0, 0))
        reply.u32()
        self.write(reply.opaque(), 0, data)

    def append(self, name, data):
        handle, size = self.find(name)
        if handle is None:
            self.put(name, data)
        else:
            self.write(handle, size, data)

    def map_in(self, name, data):
        self.write(self.find(name)[0], 0, data)

    def get(self, name):
        handle, size = self.find(name)
        if handle is None:
            return None
        data = b""
        while len(data) < size:
            reply = self.nfs(6, opaque(handle) + struct.pack(">QI", len(data), 1 << 16))
            reply.size(), reply.u32(), reply.u32()
            data += reply.opaque()
        return data

    def replace(self, name, by):
        self.nfs(14, self.place(by) + self.place(name))

    def remove(self, name):
        self.nfs(12, self.place(name))

    def make_directory(self, name):
        self.nfs(9, self.place(name) + struct.pack(">IIIIIII", 1, 0o755, 0, 0, 0, 0, 0))

    def names(self, name):
        handle, found, cookie, verifier = self.find(name)[0], [], 0, 0
        while True:
            reply = self.nfs(16, opaque(handle) + struct.pack(">QQI", cookie, verifier, 1 << 15))
            reply.size()
            verifier = reply.u64()
            while reply.u32() == 1:
                reply.u64()
                found.append(reply.opaque().decode())
                cookie = reply.u64()
            if reply.u32() == 1:
                return sorted(set(found) - {".", ".."})

    def size(self, name):
        return self.find(name)[1]


def front(text):
    if text.startswith("nfs:"):
        _, port, export = text.split(":", 2)
        return Nfs(int(port), export)
    return Directory(text)


def expect(found, wanted, what):
    if found != wanted:
        show = lambda data: f"{len(data)} bytes: {data[:40]!r}" if isinstance(data, bytes) else repr(data)
        raise Wrong(f"{what}: {show(found)}, not {show(wanted)}")


def one_round(number, writer, reader):
    """Each kind of change by one, and an open by the other right after."""
    text = b"%d," % number * (1 + number % 3000)
    writer.put("file", text)
    expect(reader.get("file"), text, f"round {number}: content")
    reader.append("log", b"r")
    writer.append("log", b"w")
    expect(reader.get("log"), b"rw" * (number % 100 + 1), f"round {number}: appended by turns")
    writer.put("new", text + b"new")
    writer.replace("file", "new")
    expect(reader.get("file"), text + b"new", f"round {number}: replaced")
    page = b"%08d" % number
    writer.map_in("map", page)
    expect(reader.get("map")[:8], page, f"round {number}: written by a mapping")
    made = f"made{number}"
    expect(reader.get(made), None, f"round {number}: not made yet")
    writer.put(made, b"x")
    expect(reader.get(made), b"x", f"round {number}: made")
    writer.remove(made)
    expect(reader.get(made), None, f"round {number}: removed")
    directory = f"dir{number}"
    writer.make_directory(directory)
    reader.put(f"{directory}/inner", b"")
    expect(writer.names(directory), ["inner"], f"round {number}: listed")
    if number % 100 == 99:
        reader.remove("log")


def behind(number, writer, reader):
    """Nothing is opened: how long is what it was before told?"""
    size = number % 97 + 1
    reader.size("looked")
    writer.put("looked", b"x" * size)
    since = time.monotonic()
    while True:
        asked = time.monotonic() - since
        if reader.size("looked") == size:
            return time.monotonic() - since
        if asked > BEHIND_MAX:
            raise Wrong(f"round {number}: a size is older than {BEHIND_MAX} s")


def rounds(args):
    fronts = [front(text) for text in args.fronts]
    fronts[0].put("looked", b"")
    fronts[0].put("map", b"\0" * 8192)
    slowest = 0
    for number in range(args.rounds):
        writer, reader = fronts[number % 2], fronts[(number + 1) % 2]
        one_round(number, writer, reader)
        if number % 10 == 0:
            slowest = max(slowest, behind(number, writer, reader))
    print(f"{args.rounds} rounds; what was not opened was behind by {slowest * 1000:.0f} ms at most")


def imports(args):
    """A tree that is imported again and again, as both see it."""
    fronts = [front(text) for text in args.fronts]
    slowest = 0
    for number in range(args.rounds):
        text, made = b"%d," % number * (1 + number % 3000), f"import{number}"
        for name, data in [("imported", text), (made, b"new"), ("imported-size", b"x" * (number % 97 + 1))]:
            with open(os.path.join(args.tree, name), "wb") as file:
                file.write(data)
        for one in fronts:
            expect(one.get(made), None, f"round {number}: not imported yet")
            if number > 0:
                one.get("imported"), one.size("imported-size")
        subprocess.run(shlex.split(args.by), check=True, stdout=subprocess.DEVNULL)
        since = time.monotonic()
        for one in fronts:
            expect(one.get("imported"), text, f"round {number}: imported")
            expect(one.get(made), b"new", f"round {number}: imported anew")
        for one in fronts:
            asked = 0
            while one.size("imported-size") != number % 97 + 1:
                if asked > BEHIND_MAX:
                    raise Wrong(f"round {number}: a size is older than {BEHIND_MAX} s")
                asked = time.monotonic() - since
            slowest = max(slowest, time.monotonic() - since)
    print(f"{args.rounds} imports; what was not opened was behind by {slowest * 1000:.0f} ms at most")


def work(path, seconds, seed):
    """Does anything to a few files that others change too."""
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end:
        name = os.path.join(path, f"busy{chance.randrange(12)}")
        other = os.path.join(path, f"busy{chance.randrange(12)}")
        what = chance.randrange(9)
        try:
            if what == 0:
                os.unlink(name)
            elif what == 1:
                os.rename(name, other)
            elif what == 2:
                with open(name, "rb") as file:
                    file.read()
            elif what in (3, 4):
                with open(name, "r+b") as file:
                    file.truncate(16384)
                    with mmap.mmap(file.fileno(), 16384) as mapping:
                        mapping[chance.randrange(16384)] = done % 256
                        if what == 4:
                            mapping.flush()
            elif what == 5:
                os.stat(name), os.listdir(path)
            elif what == 6:
                os.link(name, other)
            else:
                with open(name, "r+b" if what == 7 else "ab") as file:
                    file.write(b"y" * chance.randrange(20000))
        except OSError as error:
            # Somebody else was faster; a name that comes and goes between two looks is stale.
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ESTALE):
                raise
        except ValueError as error:
            # Cut by another between the call that makes it long and the mapping.
            if "mmap length" not in str(error):
                raise
        done += 1
    return done


def load(args):
    children = []
    for number in range(2 * args.workers):
        child = os.fork()
        if child == 0:
            try:
                work(args.fronts[number % 2], args.seconds, number)
                os._exit(0)
            except BaseException as error:
                print(f"worker {number}: {error!r}", file=sys.stderr)
                os._exit(1)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    # SIGBUS: a mapping whose file another has cut. The kernel's word for it, here as on any file system.
    bad = [state for state in states if state != 0 and os.WTERMSIG(state) != 7]
    if bad:
        raise Wrong(f"workers ended with {bad}")
    print(f"{len(children)} workers for {args.seconds} s")


def tree(path):
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            whole = os.path.join(directory, name)
            with open(whole, "rb") as file:
                found[os.path.relpath(whole, path)] = (stat.S_IMODE(os.stat(whole).st_mode), file.read())
    return found


def check(args):
    first, second = (tree(path) for path in args.fronts)
    differ = [name for name in first.keys() | second.keys() if first.get(name) != second.get(name)]
    if differ:
        raise Wrong(f"{len(differ)} files differ, {differ[0]} among them")
    print(f"{len(first)} files are the same")


def count_up(path, rounds):
    """Raises a number in a file that stays open, under a lock of fcntl(2)."""
    with open(path, "r+b", buffering=0) as file:
        for _ in range(rounds):
            fcntl.lockf(file, fcntl.LOCK_EX, 8)
            (number,) = struct.unpack("<Q", os.pread(file.fileno(), 8, 0))
            os.pwrite(file.fileno(), struct.pack("<Q", number + 1), 0)
            fcntl.lockf(file, fcntl.LOCK_UN, 8)


def insert(path, name, rows):
    """Inserts rows, one a transaction, by a connection that stays open."""
    connection = sqlite3.connect(path, timeout=120, isolation_level=None)
    for row in range(rows):
        connection.execute("BEGIN IMMEDIATE")
        (count,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (name, row, count))
        connection.execute("COMMIT")
    connection.close()


def together(jobs):
    """Runs functions, each in a process of its own."""
    children = []
    for run, *arguments in jobs:
        child = os.fork()
        if child == 0:
            try:
                run(*arguments)
            except BaseException as error:  # pylint: disable=broad-except
                print(f"{run.__name__}{tuple(arguments)}: {error!r}", file=sys.stderr)
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [code for code in (os.waitpid(child, 0)[1] for child in children) if code]
    expect(failed, [], "exit codes")


def locks(args):
    places = args.fronts * 2
    counter = os.path.join(places[0], "counter")
    with open(counter, "wb") as file:
        file.write(bytes(8))
    begun = time.monotonic()
    together([(count_up, os.path.join(place, "counter"), args.rounds) for place in places])
    took = time.monotonic() - begun
    with open(counter, "rb") as file:
        expect(struct.unpack("<Q", file.read())[0], len(places) * args.rounds, "the counter")
    print(f"locks: {len(places) * args.rounds} rounds of 4 processes in {took:.1f} s")
    base = os.path.join(places[0], "rows.db")
    with sqlite3.connect(base) as connection:
        connection.execute("CREATE TABLE rows (name TEXT, row INTEGER, before INTEGER)")
    rows = max(args.rounds // 20, 20)
    begun = time.monotonic()
    together([(insert, os.path.join(place, "rows.db"), str(at), rows) for at, place in enumerate(places)])
    took = time.monotonic() - begun
    connection = sqlite3.connect(base)
    expect(connection.execute("PRAGMA integrity_check").fetchone()[0], "ok", "the database")
    before = [row[0] for row in connection.execute("SELECT before FROM rows ORDER BY before")]
    expect(before, list(range(len(places) * rows)), "the counts that each transaction saw")
    print(f"locks: {len(before)} transactions of SQLite in {took:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "imports", "load", "check", "locks"])
    parser.add_argument("fronts", nargs=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--workers", type=int, default=3, help="for each directory")
    parser.add_argument("--tree", help="of imports: the directory that is imported")
    parser.add_argument("--by", help="of imports: the command that imports it")
    args = parser.parse_args()
    try:
        {"rounds": rounds, "imports": imports, "load": load, "check": check, "locks": locks}[args.what](args)
    except Wrong as wrong:
        sys.exit(f"wrong: {wrong}")


main()
