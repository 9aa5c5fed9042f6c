#!/usr/bin/env python3
"""Programs on an NFS mount of a guest.

    client.py many   DIR COUNT               makes so many empty files, 1,000 in a directory
    client.py rounds A B COUNT SEED          what is closed in A is seen by who opens in B, and the other way round
    client.py load   DIR MODEL HOST SEED     works in DIR until HOST/killed is there; MODEL is what must be there
    client.py verify DIR MODEL               whether it is
"""

import errno
import os
import pickle
import random
import sys
import time

# Bytes of the file in which a worker writes at random places.
FILE_BYTES = 4 << 20
# Files that a worker of names has at most.
NAMES_MAX = 200


def put(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def many(directory, count):
    os.mkdir(directory)
    for number in range(count):
        if number % 1000 == 0:
            os.mkdir(f"{directory}/d{number // 1000}")
        os.close(os.open(f"{directory}/d{number // 1000}/file{number}", os.O_CREAT | os.O_EXCL, 0o644))


def rounds(first, second, count, chance):
    """Each change of a file by one mount, seen by the next open of the other."""
    put(f"{first}/file", b"")
    held = b""
    for number in range(count):
        here, there = (first, second) if number % 2 == 0 else (second, first)

        def seen(what, name="file"):
            found = get(f"{there}/{name}")
            assert found == held, f"round {number}: {what}: {found[:40]!r} is not {held[:40]!r}"

        held = chance.randbytes(chance.choice([100, 4096, 100_000]))
        put(f"{here}/file", held)
        seen("written")
        held = chance.randbytes(len(held))
        put(f"{here}/file", held, os.O_WRONLY)
        seen("written over, of the same length")
        more = chance.randbytes(chance.randrange(1, 5000))
        put(f"{here}/file", more, os.O_WRONLY | os.O_APPEND)
        held += more
        seen("appended")
        held = held[: chance.randrange(len(held))]
        os.truncate(f"{here}/file", len(held))
        seen("truncated")
        mode = chance.choice([0o600, 0o640, 0o755])
        os.chmod(f"{here}/file", mode)
        with open(f"{there}/file", "rb") as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 == mode, f"round {number}: mode"
        held = chance.randbytes(3000)
        put(f"{here}/new{number}", held)
        seen("a new name", f"new{number}")
        os.rename(f"{here}/new{number}", f"{here}/file")
        seen("renamed over it")
        put(f"{here}/gone{number}", held)
        seen("made", f"gone{number}")
        os.unlink(f"{here}/gone{number}")
        try:
            get(f"{there}/gone{number}")
            raise AssertionError(f"round {number}: what was removed is there")
        except FileNotFoundError:
            pass


class Names:
    """Makes, moves and removes names. Each call is durable when it returns."""

    def __init__(self, directory, chance):
        self.directory, self.chance = directory, chance
        self.files, self.number, self.again = {}, 0, 0

    def repeated(self, call, *allowed):
        """Makes a call that may be told, after a restart, that it was done already."""
        try:
            call()
        except OSError as error:
            if error.errno not in allowed:
                raise
            self.again += 1

    def step(self):
        kind = self.chance.random()
        at = lambda name: f"{self.directory}/{name}"
        if kind < 0.5 and len(self.files) < NAMES_MAX or not self.files:
            self.number += 1
            name, data = f"f{self.number}", self.chance.randbytes(self.chance.randrange(20_000))
            put(at(name), data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self.files[name] = data
            return
        name = self.chance.choice(list(self.files))
        if kind < 0.7:
            self.repeated(lambda: os.unlink(at(name)), errno.ENOENT)
            del self.files[name]
        elif kind < 0.85:
            self.number += 1
            self.repeated(lambda: os.rename(at(name), at(f"r{self.number}")), errno.ENOENT)
            self.files[f"r{self.number}"] = self.files.pop(name)
        elif kind < 0.95:
            assert get(at(name)) == self.files[name], f"{name} has something else"
        else:
            self.number += 1
            self.repeated(lambda: os.mkdir(at(f"d{self.number}")), errno.EEXIST)
            self.repeated(lambda: os.rmdir(at(f"d{self.number}")), errno.ENOENT)

    def finish(self):
        return self.files


class Writes:
    """Writes at random places of a file, mostly without a sync: the client sends again what a server has lost."""

    def __init__(self, directory, chance):
        self.chance, self.again = chance, 0
        self.descriptor = os.open(f"{directory}/file", os.O_RDWR | os.O_CREAT, 0o644)
        self.held = bytearray(FILE_BYTES)
        os.pwrite(self.descriptor, self.held, 0)

    def step(self):
        kind = self.chance.random()
        at = self.chance.randrange(FILE_BYTES - 65536)
        data = self.chance.randbytes(self.chance.choice([100, 4096, 65536]))
        if kind < 0.8:
            assert os.pwrite(self.descriptor, data, at) == len(data)
            self.held[at : at + len(data)] = data
        elif kind < 0.95:
            found = os.pread(self.descriptor, len(data), at)
            assert found == self.held[at : at + len(data)], f"other bytes at {at}"
        else:
            os.fsync(self.descriptor)

    def finish(self):
        os.fsync(self.descriptor)
        os.close(self.descriptor)
        return {"file": bytes(self.held)}


class Appends:
    """Appends records, each synced: what was committed must be there."""

    def __init__(self, directory, chance):
        self.chance, self.again = chance, 0
        self.descriptor = os.open(f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.held = bytearray()

    def step(self):
        record = self.chance.randbytes(self.chance.randrange(1, 3000))
        assert os.write(self.descriptor, record) == len(record)
        os.fsync(self.descriptor)
        self.held += record

    def finish(self):
        os.close(self.descriptor)
        return {"log": bytes(self.held)}


def work(kind, directory, model, host, seed):
    os.mkdir(directory)
    name = os.path.basename(directory)
    worker, steps = kind(directory, random.Random(seed)), 0
    while not os.path.exists(f"{host}/killed"):
        for _ in range(10):
            worker.step()
        steps += 10
        with open(f"{host}/alive", "w"):
            pass
    with open(f"{model}/{name}", "wb") as file:
        pickle.dump((worker.finish(), steps, worker.again), file)


def load(directory, model, host, seed):
    os.mkdir(model)
    workers = []
    for number, kind in enumerate([Names, Names, Writes, Writes, Appends]):
        pid = os.fork()
        if pid == 0:
            try:
                work(kind, f"{directory}/{kind.__name__}{number}", model, host, seed + number)
                os._exit(0)
            except BaseException as error:
                print(f"{kind.__name__}{number}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
        workers.append(pid)
    with open(f"{host}/load", "w"):
        pass
    begun = time.monotonic()
    failed = 0
    for _ in workers:
        _, status = os.wait()
        if status != 0:
            failed += 1
            with open(f"{host}/killed", "w"):
                pass
    assert failed == 0, f"{failed} of {len(workers)} workers failed"
    print(f"load of {time.monotonic() - begun:.0f} s")


def verify(directory, model):
    steps = again = files = 0
    for name in sorted(os.listdir(model)):
        with open(f"{model}/{name}", "rb") as file:
            held, worked, repeated = pickle.load(file)
        assert sorted(os.listdir(f"{directory}/{name}")) == sorted(held), f"{name}: other names"
        for path, data in held.items():
            assert get(f"{directory}/{name}/{path}") == data, f"{name}/{path}: other content"
        steps, again, files = steps + worked, again + repeated, files + len(held)
    with open(f"{model}/sum", "w") as file:
        file.write(f"{steps} operations, {files} files right, {again} told that they were done already")


def main():
    what, *rest = sys.argv[1:]
    if what == "many":
        many(rest[0], int(rest[1]))
    elif what == "rounds":
        rounds(rest[0], rest[1], int(rest[2]), random.Random(int(rest[3])))
    elif what == "load":
        load(rest[0], rest[1], rest[2], int(rest[3]))
    else:
        verify(*rest)


main()
