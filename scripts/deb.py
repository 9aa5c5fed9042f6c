#!/usr/bin/env python3
"""Makes a Debian package of what [package.metadata.deb] of crates/cli/Cargo.toml lists.

    scripts/deb.py PROGRAM [DIRECTORY]   writes DIRECTORY/holdfast_VERSION_ARCH.deb [target/debian]
    scripts/deb.py --check PROGRAM       makes one elsewhere, and looks at what is in it

PROGRAM is the built `holdfast`; man pages and completions are those that it writes. `cargo deb` reads
the same list: run `PROGRAM generate target/generated` before it.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLI = os.path.join(ROOT, "crates/cli")
EXIT_SKIPPED = 77
# systemd-analyze(1) gives a unit so much exposure at most.
EXPOSURE_MAX = 3.0
UNITS = ["holdfast.service", "holdfast-mounts.service"]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def metadata():
    with open(os.path.join(CLI, "Cargo.toml"), "rb") as file:
        deb = tomllib.load(file)["package"]["metadata"]["deb"]
    with open(os.path.join(ROOT, "Cargo.toml"), "rb") as file:
        version = tomllib.load(file)["workspace"]["package"]["version"]
    return deb, version


def files_of(source, program):
    if source.startswith("target/release/"):
        return [program]
    found = sorted(glob.glob(os.path.join(CLI, source)))
    if not found:
        sys.exit(f"{source}: there is no such file")
    return found


def stage(program, into):
    """Puts every file in its place below `into`."""
    deb, version = metadata()
    generated = os.path.join(ROOT, "target/generated")
    # A page of a command that is gone would stay.
    shutil.rmtree(generated, ignore_errors=True)
    run(program, "generate", generated)
    for source, place, mode in deb["assets"]:
        for file in files_of(source, program):
            name = os.path.join(place, os.path.basename(file)) if place.endswith("/") else place
            target = os.path.join(into, name)
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            if os.path.islink(file):
                os.symlink(os.readlink(file), target)
                continue
            shutil.copyfile(file, target)
            if file == program:
                # As Debian has it: line tables and symbols are nine tenths of the program.
                run("strip", "--strip-unneeded", target)
            os.chmod(target, int(mode, 8))
    size = sum(os.path.getsize(os.path.join(at, name))
               for at, _, names in os.walk(into) for name in names)
    first, *rest = deb["extended-description"].split(": ", 1)
    control = {
        "Package": deb["name"],
        "Version": version,
        "Architecture": run("dpkg", "--print-architecture").strip(),
        "Maintainer": deb["maintainer"],
        "Installed-Size": str(-(-size // 1024)),
        "Depends": deb["depends"],
        "Recommends": deb["recommends"],
        "Section": deb["section"],
        "Priority": deb["priority"],
        "Description": first + "".join(f"\n {line}" for line in rest),
    }
    os.makedirs(os.path.join(into, "DEBIAN"), mode=0o755)
    with open(os.path.join(into, "DEBIAN/control"), "w") as file:
        file.writelines(f"{key}: {value}\n" for key, value in control.items())
    return f"{deb['name']}_{version}_{control['Architecture']}.deb"


def make(program, directory, compression=()):
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)
        package = os.path.join(directory, stage(program, work))
        run("dpkg-deb", "--root-owner-group", *compression, "--build", work, package)
    return package


def check(program):
    """Makes a package, takes it apart, and says what is missing in it."""
    with tempfile.TemporaryDirectory() as work:
        # What is looked at and thrown away is not worth the time of a good compression.
        package = make(program, work, ["-Zgzip", "-z1"])
        listed = [line.split() for line in run("dpkg-deb", "--contents", package).splitlines()]
        modes = {line[5].removeprefix("."): (line[0], line[1]) for line in listed}
        commands = [line.split()[0] for line in run(program, "--help").split("Commands:\n", 1)[1]
                    .split("\n\n", 1)[0].splitlines() if line.startswith("  ") and line[2] != " "]
        wanted = {"/usr/bin/holdfast": "-rwxr-xr-x", "/usr/sbin/mount.holdfast": "-rwxr-xr-x",
                  "/usr/sbin/mount.fuse.holdfast": "lrwxrwxrwx"}
        others = [f"/usr/lib/systemd/system/{unit}" for unit in UNITS]
        others += [f"/usr/share/man/man1/holdfast-{it}.1" for it in commands if it != "help"]
        others += ["/usr/share/man/man1/holdfast.1",
                   "/usr/share/man/man5/holdfast.toml.5",
                   "/usr/share/man/man8/mount.holdfast.8",
                   "/usr/share/bash-completion/completions/holdfast",
                   "/usr/share/zsh/vendor-completions/_holdfast",
                   "/usr/share/fish/vendor_completions.d/holdfast.fish",
                   "/usr/share/doc/holdfast/copyright",
                   "/usr/share/doc/holdfast/OPERATIONS.md",
                   "/usr/share/doc/holdfast/examples/holdfast.toml"]
        wanted.update({path: "-rw-r--r--" for path in others})
        wrong = [f"{path} is {modes.get(path)}" for path, mode in wanted.items()
                 if modes.get(path) != (mode, "root/root")]
        out = os.path.join(work, "out")
        run("dpkg-deb", "--extract", package, out)
        installed = os.path.join(out, "usr/bin/holdfast")
        run(installed, "--version")
        if ".debug_info" in run("readelf", "--sections", "--wide", installed):
            wrong.append("/usr/bin/holdfast is not stripped")
        example = os.path.join(out, "usr/share/doc/holdfast/examples/holdfast.toml")
        tried = os.path.join(work, "holdfast.toml")
        pool = os.path.join(work, "pool.hf")
        run(installed, "create", pool, "--size", "64M")
        run(installed, "fileset", "create", pool + ":home")
        with open(example) as file, open(tried, "w") as copy:
            # Its pool has to be there.
            copy.write(file.read().replace("/srv/pool.hf", pool))
        run(installed, "serve", "--config", tried, "--check")
        for unit in UNITS:
            path = os.path.join(out, "usr/lib/systemd/system", unit)
            with open(path) as file:
                starts = [line for line in file if line.startswith("Exec") and "/holdfast" in line]
            wrong += [f"{unit}: {line.strip()}: no program of the package" for line in starts
                      if not line.split("=", 1)[1].startswith("/usr/bin/holdfast ")]
            if not starts:
                wrong.append(f"{unit} starts nothing")
        if shutil.which("systemd-analyze"):
            service = os.path.join(out, "usr/lib/systemd/system/holdfast.service")
            words = ["systemd-analyze", "security", "--offline=true", service]
            told = subprocess.run(words, capture_output=True, text=True).stdout
            exposure = float(told.split("exposure level for holdfast.service: ")[1].split()[0])
            print(f"systemd-analyze gives holdfast.service {exposure}")
            if exposure > EXPOSURE_MAX:
                wrong.append(f"holdfast.service is exposed by {exposure}, more than {EXPOSURE_MAX}")
        for line in wrong:
            print(f"deb: {line}", file=sys.stderr)
        print(f"{os.path.basename(package)}: {len(modes)} entries, {os.path.getsize(package)} bytes")
        return 1 if wrong else 0


def main():
    words = sys.argv[1:]
    is_check = words[:1] == ["--check"]
    words = words[1:] if is_check else words
    if len(words) not in ([1] if is_check else [1, 2]):
        sys.exit(__doc__)
    for tool, package in [("dpkg-deb", "dpkg"), ("strip", "binutils")]:
        if not shutil.which(tool):
            print(f"deb: there is no {tool} here: install {package}", file=sys.stderr)
            return EXIT_SKIPPED
    program = os.path.abspath(words[0])
    if is_check:
        return check(program)
    directory = words[1] if len(words) > 1 else os.path.join(ROOT, "target/debian")
    print(make(program, directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
