#!/usr/bin/env python3
"""Damages pools from outside and judges what Holdfast makes of them.

Knows nothing of the test kit and needs only the program `holdfast`, root and /dev/fuse. It makes a
pool with files through a mount, keeps copies of it as it was closed twice and killed once, and then,
for each mutation: damages a copy, runs `holdfast check`, mounts it read-only and reads every file,
mounts it read-write, reads every file, writes new ones, and reads everything once more.

What it wants of each:

  - no panic, no hang, no exit code that is not documented;
  - no wrong bytes, names or attributes: what is served is right, or an error;
  - what could be read before the new files were written can be read after it, and so can they;
  - `check` names something wherever an error was served or a mount was refused;
  - `check` prints nothing that a terminal obeys.

A mutation of the kind `crafted` has good checksums: no file system tells all of those. Only panics,
hangs and what is printed count for it. The same holds for the end of a log that was not closed
(`log`), where what was acknowledged last may be lost: no journal tells that.

  corruptor.py --count 2000 --jobs 2            a soak
  corruptor.py --base DIR --seed 7 --only 123   one mutation again, on the pools in DIR

A finding keeps its pools: with --base DIR they are there, otherwise in --work.
"""

import argparse
import collections
import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

PAGE = 4096
STEP_SECONDS = 90
KINDS = {
    3: "journal head", 4: "double-write head", 5: "table root", 6: "group table", 7: "descriptor",
    8: "free map", 9: "busy map", 10: "usage", 11: "busy anodes", 12: "filesets", 13: "anodes",
    14: "map", 15: "directory", 16: "anode map", 17: "orphans", 18: "summary", 19: "tombstone",
    20: "deferred frees", 21: "attributes", 23: "LSNs",
}
MUTATIONS = [
    ("flip", 24), ("zero", 12), ("stale", 24), ("swap", 8), ("misdirect", 10), ("field", 6),
    ("crafted", 10), ("fixed", 6), ("log", 4), ("resize", 1),
]
# What a file system may answer for what it can't read.
DAMAGE = {errno.EIO, 117, errno.EROFS}


# CRC-32C, as the format has it.
def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# Pool files: sparse, so only what is there is copied and looked at.
def extents(fd, size):
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end
        at = end


def copy_pool(source, target):
    if os.path.exists(target):
        os.unlink(target)
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        for start, end in extents(old.fileno(), size):
            old.seek(start)
            new.seek(start)
            new.write(old.read(end - start))
    os.chmod(target, 0o600)


class Pool:
    """A pool file in memory: its pages that are not zero."""

    def __init__(self, path, regions):
        self.path, self.regions = path, regions
        self.pages = {}
        with open(path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            for start, end in extents(file.fileno(), self.size):
                file.seek(start)
                data = file.read(end - start)
                for at in range(0, len(data), PAGE):
                    page = data[at:at + PAGE]
                    if page.strip(b"\0"):
                        self.pages[start + at] = page

    def page(self, offset):
        return self.pages.get(offset, bytes(PAGE))

    def kind(self, offset):
        page = self.page(offset)
        return page[18] if page[:4] == b"HFpg" else None

    def region(self, offset):
        if offset < 131072 or offset >= self.regions["device_bytes"] - 131072:
            return "superblock"
        if offset < self.regions["journal_offset"] + 4 * PAGE:
            return "journal heads"
        if offset < self.regions["double_write_offset"]:
            return "log"
        if offset < self.regions["group_table_offset"]:
            return "double-write"
        if self.kind(offset) is None:
            return "data"
        # A page whose place is free may hold what it held before.
        return KINDS.get(self.kind(offset), "unknown")

    def choose(self, rng, wanted=None):
        """Chooses a page, each region as often as any other."""
        if not hasattr(self, "by_region"):
            self.by_region = collections.defaultdict(list)
            for offset in sorted(self.pages):
                self.by_region[self.region(offset)].append(offset)
        regions = sorted(r for r in self.by_region if wanted is None or wanted(r))
        return rng.choice(self.by_region[rng.choice(regions)])


# The files: made, changed and known.
def content(seed, size):
    return random.Random(seed).randbytes(size)


class Known:
    """What is in a tree, by path: bytes of a file, target of a link, names of a directory."""

    def __init__(self, root):
        self.root, self.entries = root, {b"": {"kind": "dir", "xattrs": {}}}

    def path(self, name):
        return os.path.join(os.fsencode(self.root), name)

    def write(self, name, data, at=None):
        flags = os.O_RDWR | os.O_CREAT
        fd = os.open(self.path(name), flags, 0o640)
        entry = self.entries.setdefault(name, {"kind": "file", "data": b"", "xattrs": {}})
        old = entry["data"]
        if at is None:
            os.ftruncate(fd, 0)
            old, at = b"", 0
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)
        os.fsync(fd)
        os.close(fd)
        for other in self.entries.values():
            if other.get("same") and other["same"] == entry.get("same"):
                other["data"] = old[:at].ljust(at, b"\0") + data + old[at + len(data):]
        entry["data"] = old[:at].ljust(at, b"\0") + data + old[at + len(data):]

    def mkdir(self, name):
        os.mkdir(self.path(name))
        self.entries[name] = {"kind": "dir", "xattrs": {}}

    def symlink(self, target, name):
        os.symlink(target, self.path(name))
        self.entries[name] = {"kind": "link", "data": target}

    def link(self, old, new):
        os.link(self.path(old), self.path(new))
        entry = self.entries[old]
        entry["same"] = entry.get("same") or old
        self.entries[new] = dict(entry)

    def rename(self, old, new):
        os.rename(self.path(old), self.path(new))
        self.entries[new] = self.entries.pop(old)

    def unlink(self, name):
        os.unlink(self.path(name))
        del self.entries[name]

    def setxattr(self, name, attribute, value):
        os.setxattr(self.path(name), attribute, value)
        self.entries[name]["xattrs"][attribute] = value

    def sync(self):
        """Makes all durable, one by one: a sync of another file promises nothing for this one, and
        syncfs(2) does not reach a FUSE server."""
        for name, entry in self.entries.items():
            if entry["kind"] != "link":
                fd = os.open(self.path(name), os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)

    def manifest(self):
        """Returns what a reader compares with, as JSON can hold it."""
        found = {}
        for name, entry in self.entries.items():
            kept = {"kind": entry["kind"]}
            if entry["kind"] == "file":
                kept["size"] = len(entry["data"])
                kept["sha"] = hashlib.sha256(entry["data"]).hexdigest()
            elif entry["kind"] == "link":
                kept["target"] = entry["data"].hex()
            else:
                prefix = name + b"/" if name else b""
                inside = [n[len(prefix):] for n in self.entries if n and n.startswith(prefix)]
                kept["names"] = sorted(n.hex() for n in inside if b"/" not in n)
            kept["xattrs"] = {k: v.hex() for k, v in entry.get("xattrs", {}).items()}
            found[name.hex()] = kept
        return found


ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in [
    (1, 6, 0xFFFFFFFF), (2, 7, 12345), (4, 4, 0xFFFFFFFF), (16, 7, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)])


def populate(known):
    for number in range(60):
        known.write(b"tiny%d" % number, content(number, 20 + 3 * number))
    for number in range(40):
        known.write(b"small%d" % number, content(100 + number, 700 * number + 1))
    known.mkdir(b"d")
    for number in range(6):
        known.mkdir(b"d/%d" % number)
        for file in range(12):
            known.write(b"d/%d/f%d" % (number, file), content(1000 + 20 * number + file, 5000 * file))
    known.mkdir(b"many")
    for number in range(300):
        known.write(b"many/" + b"a name of some length, number %d" % number, b"")
    known.write(b"big", content(7, 3_000_000))
    known.write(b"holes", content(8, 50_000), at=2_000_000)
    known.write(b"holes", content(9, 5_000), at=700_001)
    known.symlink(b"d/3/f4", b"link")
    known.symlink(b"x" * 1000, b"long link")
    known.link(b"d/1/f3", b"hard")
    for name in [b"\x1b[2Jcleared", b"forged\nFS001: all is lost", b"not utf-8 \xff\xfe", b"back\\slash"]:
        known.write(name, name * 50)
    known.setxattr(b"tiny3", "user.short", b"value")
    known.setxattr(b"small7", "user.long", content(11, 3000))
    known.setxattr(b"small7", "user.longer", content(12, 9000))
    known.setxattr(b"d", "user.of a directory", b"yes")
    os.setxattr(known.path(b"small9"), "system.posix_acl_access", ACL)
    os.setxattr(known.path(b"d/2"), "system.posix_acl_default", ACL)


def change(known, turn):
    """Changes some of everything, so that an older copy of any page tells something else."""
    for number in range(turn, 60, 7):
        known.write(b"tiny%d" % number, content(5000 + 60 * turn + number, 30 + number))
    for number in range(turn, 40, 9):
        known.unlink(b"small%d" % number)
        known.write(b"later%d-%d" % (turn, number), content(6000 + number, 9000))
    known.rename(b"d/5/f%d" % turn, b"d/4/moved%d" % turn)
    known.mkdir(b"new%d" % turn)
    for number in range(30):
        known.write(b"new%d/%d" % (turn, number), content(7000 + 100 * turn + number, 2000 * number))
    for number in range(turn, 300, 11):
        known.unlink(b"many/" + b"a name of some length, number %d" % number)
    for number in range(40):
        known.write(b"many/later %d %d" % (turn, number), b"%d" % number)
    known.write(b"big", content(70 + turn, 200_000), at=400_000 * turn)
    known.write(b"hard", content(80 + turn, 20_000))
    known.setxattr(b"small7", "user.long", content(90 + turn, 2500 + turn))
    known.setxattr(b"tiny5", "user.turn", b"%d" % turn)


class Lost(Exception):
    """A server that hangs, or ended with what it must not end with."""


class Server:
    """`holdfast mount` in the foreground."""

    def __init__(self, program, pool, mount, work, options=None, deadline=STEP_SECONDS):
        self.program, self.mount, self.deadline = program, mount, deadline
        self.env = dict(os.environ, HOLDFAST_RUN_DIR=os.path.join(work, "run"), RUST_BACKTRACE="0")
        self.log = os.path.join(work, "server.log")
        command = [program, "mount", pool, mount] + (["-o", options] if options else [])
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        end = time.monotonic() + deadline
        while self.process.poll() is None and not self.is_mounted():
            if time.monotonic() > end:
                self.kill()
                raise Lost("mount hangs")
            time.sleep(0.005)
        self.is_up = self.process.poll() is None

    def is_mounted(self):
        with open("/proc/self/mounts", "rb") as mounts:
            return any(line.split()[1:2] == [os.fsencode(self.mount)] for line in mounts)

    def said(self):
        with open(self.log, "rb") as log:
            return log.read().decode(errors="replace")

    def unmount(self):
        ended = subprocess.run([self.program, "unmount", self.mount], env=self.env,
                               capture_output=True, timeout=self.deadline, check=False)
        try:
            self.process.wait(self.deadline)
        except subprocess.TimeoutExpired:
            raise Lost("the server hangs at unmount") from None
        return ended.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        subprocess.run(["umount", "-l", self.mount], capture_output=True, check=False)


def regions_of(program, pool):
    text = subprocess.run([program, "dump", pool, "superblock"], capture_output=True, check=True).stdout
    found = {}
    for line in text.decode().splitlines():
        name, _, value = line.strip().rstrip(",").partition(": ")
        if value.isdigit():
            found[name] = int(value)
    return found


def make_base(program, base, work, size):
    """Makes the pools: closed before the changes, closed after them, and killed after more."""
    os.makedirs(base, exist_ok=True)
    mount, pool = os.path.join(work, "mnt"), os.path.join(base, "now.hf")
    os.makedirs(mount, exist_ok=True)
    subprocess.run([program, "create", pool, "--size", size], check=True, stdout=subprocess.DEVNULL)
    known = Known(mount)

    def life(work_on, ends_well=True):
        server = Server(program, pool, mount, work)
        if not server.is_up:
            sys.exit(f"a new pool does not mount: {server.said()}")
        try:
            work_on()
            known.sync()
        finally:
            if ends_well:
                server.unmount()
            else:
                server.kill()

    life(lambda: populate(known))
    copy_pool(pool, os.path.join(base, "before.hf"))
    life(lambda: change(known, 1))
    copy_pool(pool, os.path.join(base, "closed.hf"))
    manifests = {"closed": known.manifest()}
    orphan = []

    def more():
        change(known, 2)
        known.write(b"orphan", content(3, 100_000))
        orphan.append(os.open(known.path(b"orphan"), os.O_RDONLY))
        known.unlink(b"orphan")

    life(more, ends_well=False)
    for fd in orphan:
        os.close(fd)
    copy_pool(pool, os.path.join(base, "killed.hf"))
    os.unlink(pool)
    manifests["killed"] = known.manifest()
    with open(os.path.join(base, "known.json"), "w", encoding="ascii") as file:
        json.dump({"regions": regions_of(program, os.path.join(base, "closed.hf")),
                   "manifests": manifests}, file)


class Base:
    def __init__(self, directory):
        self.directory = directory
        with open(os.path.join(directory, "known.json"), encoding="ascii") as file:
            known = json.load(file)
        self.manifests = known["manifests"]
        regions = known["regions"]
        self.pools = {name: Pool(os.path.join(directory, name + ".hf"), regions)
                      for name in ["before", "closed", "killed"]}
        # What an older pool has of a page: all other pages are as they were.
        self.older = {}
        for name, olds in [("closed", ["before"]), ("killed", ["before", "closed"])]:
            now = self.pools[name]
            self.older[name] = [
                (old, offset) for old in olds for offset in sorted(self.pools[old].pages)
                if self.pools[old].pages[offset] != now.page(offset)]


# The mutations: each returns what to write where, and says what it is.
def mutate(rng, base, name):
    pool = base.pools[name]
    if name == "control":
        raise ValueError("a control is not mutated")
    kind = rng.choices([k for k, _ in MUTATIONS], [w for _, w in MUTATIONS])[0]
    log_apart = lambda region: region != "log"
    if kind == "flip":
        at = pool.choose(rng, log_apart)
        page = bytearray(pool.page(at))
        for _ in range(rng.choice([1, 1, 2, 8])):
            page[rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
        return kind, pool.region(at), [(at, bytes(page))]
    if kind == "zero":
        at = pool.choose(rng, log_apart)
        region = pool.region(at)
        start, length = rng.choice([(512 * rng.randrange(8), 512), (0, PAGE), (0, PAGE)])
        return kind, region, [(at + start, bytes(length))]
    if kind == "stale":
        # By region, so that the few pages of maps and tables come as often as the others.
        groups = collections.defaultdict(list)
        for old, at in base.older[name]:
            region = base.pools[old].region(at)
            if region not in ("log", "data"):
                groups[region].append((old, at))
        region = rng.choice(sorted(groups))
        lost = [rng.choice(groups[region])]
        if region != KINDS[23] and rng.random() < 0.3:
            # Several writes were lost. That of a page and of its LSN page together is not told.
            others = sorted(set(groups) - {KINDS[23]})
            lost += [rng.choice(groups[rng.choice(others)]) for _ in range(rng.randrange(1, 4))]
        return kind, region, [(at, base.pools[old].page(at)) for old, at in lost]
    metadata = lambda region: region in KINDS.values()
    if kind == "swap":
        one = pool.choose(rng, metadata)
        others = [at for at in pool.by_region[pool.region(one)] if at != one]
        two = rng.choice(others) if others and rng.random() < 0.7 else pool.choose(rng, metadata)
        return kind, pool.region(one), [(one, pool.page(two)), (two, pool.page(one))]
    if kind == "misdirect":
        # A page was written where another is; the one that should be there is as it was before.
        one = pool.choose(rng, lambda region: metadata(region) or region == "data")
        two = pool.choose(rng, metadata)
        return kind, pool.region(two), [(two, pool.page(one))]
    if kind in ("field", "crafted"):
        at = pool.choose(rng, metadata)
        page = bytearray(pool.page(at))
        length = rng.choice([1, 2, 4, 8, 8])
        used = len(bytes(page).rstrip(b"\0"))
        field = rng.randrange(0, max(used, 136) - length + 1) // length * length
        value = int.from_bytes(page[field:field + length], "little")
        bits = 8 * length
        value = rng.choice([0, 1, (1 << bits) - 1, value >> bits // 2, value & (1 << bits // 2) - 1,
                            value + 1, value - 1, rng.getrandbits(bits)]) % (1 << bits)
        page[field:field + length] = value.to_bytes(length, "little")
        if kind == "crafted":
            seal(page, rng)
        return kind, pool.region(at), [(at, bytes(page))]
    if kind == "fixed":
        wanted = lambda region: region in ("superblock", "journal heads", "double-write")
        writes, regions = [], set()
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = pool.choose(rng, wanted)
            page = bytearray(pool.page(at))
            if rng.random() < 0.5:
                page[rng.randrange(512)] ^= 1 << rng.randrange(8)
            else:
                page = bytearray(PAGE)
            regions.add(pool.region(at))
            writes.append((at, bytes(page)))
        return kind, "+".join(sorted(regions)), writes
    if kind == "log":
        at = pool.choose(rng, lambda region: region == "log")
        page = bytearray(pool.page(at))
        for _ in range(rng.choice([1, 8, 64])):
            page[rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
        return kind, "log", [(at, bytes(page))]
    return kind, "device", [(rng.choice([-PAGE, -65536, -1 << 20, PAGE, 1 << 20]), None)]


def seal(page, rng):
    """Gives a page good checksums, those of its anodes too, now and then."""
    if page[18] in (12, 13) and rng.random() < 0.7:
        for slot in range(128, PAGE - 511, 512):
            if any(page[slot:slot + 512]):
                page[slot:slot + 4] = struct.pack("<I", crc32c(page[slot + 4:slot + 512]))
    page[4:8] = struct.pack("<I", crc32c(page[8:]))


def apply(writes, target):
    with open(target, "r+b") as file:
        for at, data in writes:
            if data is None:
                file.truncate(os.fstat(file.fileno()).st_size + at)
            else:
                file.seek(at)
                file.write(data)


# Reading and writing on a mount, in a process of its own: it may hang.
def read_tree(mount, manifest):
    """Returns for each path `ok`, the error that was served, or what is wrong."""
    results = {}
    for name, wanted in manifest.items():
        try:
            results[name] = compare(os.path.join(os.fsencode(mount), bytes.fromhex(name)), wanted)
        except OSError as error:
            results[name] = f"E{error.errno}"
    return results


def compare(path, wanted):
    path = path.rstrip(b"/")
    found = os.lstat(path)
    mode = {"file": 0o100000, "dir": 0o040000, "link": 0o120000}[wanted["kind"]]
    if found.st_mode & 0o170000 != mode:
        return f"wrong: mode {found.st_mode:o}"
    if wanted["kind"] == "link":
        return "ok" if os.readlink(path).hex() == wanted["target"] else "wrong: target"
    if wanted["kind"] == "dir":
        names = sorted(name.hex() for name in os.listdir(path))
        if names != wanted["names"]:
            extra = [bytes.fromhex(n) for n in set(names) - set(wanted["names"])][:3]
            missing = [bytes.fromhex(n) for n in set(wanted["names"]) - set(names)][:3]
            return f"wrong: names, extra {extra} missing {missing}"
    else:
        if found.st_size != wanted["size"]:
            return f"wrong: size {found.st_size} of {wanted['size']}"
        digest = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            while True:
                part = file.read(1 << 20)
                if not part:
                    break
                digest.update(part)
        if digest.hexdigest() != wanted["sha"]:
            return "wrong: bytes"
    for attribute, value in wanted["xattrs"].items():
        if os.getxattr(path, attribute).hex() != value:
            return f"wrong: attribute {attribute}"
    return "ok"


NEW_SIZES = [0, 1, 40, 4096, 5000, 16384, 100_000, 300_000, 17, 60_000, 2_000_000, 200]


def new_files():
    files = {}
    for number, size in enumerate(NEW_SIZES * 3):
        data = content(90_000 + number, size)
        files[b"written/%d" % number] = data
    return files


def write_new(mount):
    """Writes new files; returns which are durable."""
    done = {}
    root = os.fsencode(mount)
    try:
        os.mkdir(os.path.join(root, b"written"))
    except OSError as error:
        return {"": f"E{error.errno}"}
    for name, data in new_files().items():
        try:
            with open(os.path.join(root, name), "wb", buffering=0) as file:
                view, at = memoryview(data), 0
                while at < len(view):
                    at += file.write(view[at:])
                os.fsync(file.fileno())
            done[name.hex()] = "ok"
        except OSError as error:
            done[name.hex()] = f"E{error.errno}"
    return done


def new_manifest(durable):
    files = new_files()
    manifest = {}
    for name, state in durable.items():
        if state == "ok":
            data = files[bytes.fromhex(name)]
            manifest[name] = {"kind": "file", "size": len(data), "xattrs": {},
                              "sha": hashlib.sha256(data).hexdigest()}
    return manifest


def in_child(work, function, *arguments):
    """Calls `function` in a process of its own, and gives up on one that hangs."""
    path = os.path.join(work, "answer.json")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(path, "w", encoding="ascii") as file:
                json.dump(function(*arguments), file)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + STEP_SECONDS
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise Lost(f"{function.__name__} hangs")
        time.sleep(0.002)
    if status != 0:
        raise Lost(f"{function.__name__} ended with {status}")
    with open(path, encoding="ascii") as file:
        return json.load(file)


# The judge.
class Case:
    """One mutation, and what came of it."""

    def __init__(self, program, base, work, seed, number):
        self.program, self.base, self.work, self.seed, self.number = program, base, work, seed, number
        self.findings, self.counts = [], collections.Counter()
        self.pool, self.mount = os.path.join(work, "pool.hf"), os.path.join(work, "mnt")
        os.makedirs(self.mount, exist_ok=True)

    def find(self, what):
        self.findings.append(what)

    def heard(self, who, text):
        if "panicked" in text or "RUST_BACKTRACE" in text:
            self.find(f"{who} panics: {text[-1500:]}")

    def check(self):
        try:
            ended = subprocess.run([self.program, "check", self.pool], capture_output=True,
                                   timeout=STEP_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            self.find("check hangs")
            return None, ""
        said = ended.stdout.decode(errors="backslashreplace")
        self.heard("check", ended.stderr.decode(errors="replace"))
        if ended.returncode not in (0, 4, 8):
            self.find(f"check exits with {ended.returncode}: {ended.stderr[-500:]!r}")
        bad = [byte for byte in ended.stdout if byte < 32 and byte != 10 or byte == 127]
        if bad or "\nFS001: all is lost" in said:
            self.find("check prints what a terminal obeys")
        return ended.returncode, said + ended.stderr.decode(errors="replace")

    def session(self, options, manifest, writes=False):
        """Mounts, reads, and perhaps writes. Returns what was read and written; `None`: refused."""
        server = Server(self.program, self.pool, self.mount, self.work, options)
        try:
            if not server.is_up:
                self.heard("mount", server.said())
                if server.process.returncode not in (0, 1, 2, 4, 8):
                    self.find(f"mount exits with {server.process.returncode}: {server.said()[-500:]}")
                return None, {}
            read = in_child(self.work, read_tree, self.mount, manifest)
            written = in_child(self.work, write_new, self.mount) if writes else {}
            server.unmount()
            self.heard("server", server.said())
            if server.process.returncode < 0:
                self.find(f"the server ends by signal {-server.process.returncode}")
            return read, written
        except Lost:
            self.heard("server", server.said())
            raise
        finally:
            server.kill()

    def run(self):
        rng = random.Random(f"{self.seed}:{self.number}")
        name = rng.choice(["closed", "closed", "killed"])
        if self.number < 2:
            # Two controls: what is not damaged is right.
            name, kind, region, writes = ["closed", "killed"][self.number], "control", "none", []
        else:
            kind, region, writes = mutate(rng, self.base, name)
        self.what = f"{self.number}: {kind} of {region} in the pool that was {name}, at " + ", ".join(
            str(at) for at, _ in writes)
        self.kind, self.region = kind, region
        is_lenient = kind in ("crafted", "log")
        manifest = self.base.manifests[name]
        copy_pool(self.base.pools[name].path, self.pool)
        apply(writes, self.pool)
        try:
            self.judge(manifest, is_lenient)
        except Lost as lost:
            self.find(str(lost))
        except subprocess.TimeoutExpired as late:
            self.find(f"hangs: {late.cmd}")
        return self

    def judge(self, manifest, is_lenient):
        code, said = self.check()
        read_only, _ = self.session("ro", manifest)
        read, written = self.session(None, manifest, writes=True)
        served = self.served(read_only, "read-only", is_lenient) + self.served(read, "read-write", is_lenient)
        is_told = served or read_only is None or read is None
        if is_told and code == 0 and not is_lenient:
            self.find(f"check is clean, but {served[:3] or 'a mount is refused'}")
        if read is None:
            return self.conclude(code, is_told)
        durable = new_manifest(written)
        if len(durable) < len(new_files()):
            self.counts["writes refused"] += 1
            if code == 0 and not is_lenient:
                self.find(f"check is clean, but writes fail: {sorted(set(written.values()))}")
        after_code, after_said = self.check()
        again, _ = self.session(None, {**manifest, **durable})
        if is_lenient:
            return self.conclude(code, is_told)
        if again is None:
            self.find(f"can't be mounted after files were written; check before: {code}, after: {after_code}")
            return self.conclude(code, is_told)
        for path, state in again.items():
            # The names of the root have changed: there is a directory more.
            before = read.get(path, "ok")
            if before == "ok" and state != "ok" and path != "":
                self.find(f"{bytes.fromhex(path)!r} is {state} after new files were written")
        if code == 0 and after_code != 0:
            self.find(f"check was clean, and is not after files were written: {after_said[-600:]}")
        return self.conclude(code, is_told)

    def served(self, read, how, is_lenient):
        """Returns the errors that were served; notes what is wrong."""
        errors = []
        for path, state in (read or {}).items():
            if state.startswith("wrong") and not is_lenient:
                self.find(f"{how}: {bytes.fromhex(path)!r}: {state}")
            elif state.startswith("E"):
                errors.append(f"{bytes.fromhex(path)!r}: {state}")
                if int(state[1:]) not in DAMAGE and not is_lenient:
                    self.find(f"{how}: {bytes.fromhex(path)!r} answers {state}")
        return errors

    def conclude(self, code, is_told):
        self.counts["told by check" if code else "clean"] += 1
        self.counts["errors served" if is_told else "all served right"] += 1


def work_of(number, options):
    return os.path.join(options.work, f"job{number}")


def job(options, number, numbers, results):
    work = work_of(number, options)
    os.makedirs(work, exist_ok=True)
    base = Base(options.base)
    for mutation in numbers:
        case = Case(options.holdfast, base, work, options.seed, mutation)
        try:
            case.run()
        except Exception:
            case.find(traceback.format_exc())
        if case.findings and options.keep:
            shutil.copy(case.pool, os.path.join(options.base, f"mutation{mutation}.hf"))
        results.put((mutation, getattr(case, "what", str(mutation)), getattr(case, "kind", "?"),
                     getattr(case, "region", "?"), dict(case.counts), case.findings))
    results.put(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdfast", default=os.environ.get("HOLDFAST", "holdfast"))
    parser.add_argument("--count", type=int, default=100, help="mutations; the first two are controls")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, action="append", help="only this mutation")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--size", default="64M")
    parser.add_argument("--work", help="a directory for pools and mounts [a new one]")
    parser.add_argument("--base", help="a directory of pools: used if it has some, else made")
    parser.add_argument("--keep", action="store_true", help="keep each pool with a finding in --base")
    options = parser.parse_args()
    options.holdfast = os.path.abspath(options.holdfast) if "/" in options.holdfast else options.holdfast
    is_temporary = options.work is None
    options.work = os.path.abspath(options.work or tempfile.mkdtemp(prefix="holdfast-corruptor-"))
    options.base = os.path.abspath(options.base or os.path.join(options.work, "base"))
    os.makedirs(options.work, exist_ok=True)
    if not os.path.exists(os.path.join(options.base, "known.json")):
        make_base(options.holdfast, options.base, options.work, options.size)
    numbers = options.only or range(options.count)
    results = multiprocessing.Queue()
    jobs = [multiprocessing.Process(target=job, args=(options, number, list(numbers)[number::options.jobs], results))
            for number in range(options.jobs)]
    for process in jobs:
        process.start()
    table, found, left, start = collections.defaultdict(collections.Counter), 0, len(jobs), time.monotonic()
    while left:
        result = results.get()
        if result is None:
            left -= 1
            continue
        mutation, what, kind, region, counts, findings = result
        table[kind]["mutations"] += 1
        table[kind].update(counts)
        if findings:
            found += 1
            print(f"FINDING {what}", flush=True)
            for finding in findings[:5]:
                print(f"    {finding}", flush=True)
            if len(findings) > 5:
                print(f"    and {len(findings) - 5} more", flush=True)
    for process in jobs:
        process.join()
    columns = ["mutations", "told by check", "clean", "errors served", "all served right", "writes refused"]
    print(f"{'kind':12}" + "".join(f"{column:>17}" for column in columns))
    for kind, counts in sorted(table.items()):
        print(f"{kind:12}" + "".join(f"{counts[column]:17}" for column in columns))
    total = sum(counts["mutations"] for counts in table.values())
    print(f"{total} mutations, {found} with findings, {time.monotonic() - start:.0f} s, seed {options.seed}")
    if found:
        print(f"one again: {sys.argv[0]} --base {options.base} --seed {options.seed} --only NUMBER --keep")
    elif is_temporary:
        shutil.rmtree(options.work)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
