//! `holdfast mount -o remount,...`: changes a mount in the kernel and at its server.

use std::path::Path;

use anyhow::Context;
use front::fuse::MountOptions;
use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::args::MountArgs;
use crate::exit;
use crate::output::Output;
use control::UsageError;
use control::wire::{WireAnswer, WireRequest};
use server::mounts::RemountSpec;
use server::status::{self, DiscoveredServer};

pub(super) fn is_asked(args: &MountArgs) -> Result<bool, UsageError> {
    let mut options = MountOptions::new("");
    apply(&mut options, &args.options)?;
    Ok(options.is_remount)
}

pub(super) fn run(args: &MountArgs, output: &Output) -> anyhow::Result<u8> {
    // Like mount(8), accepts a directory without a source.
    let given = args.directory.as_deref().or(args.device.as_deref());
    let given = given.ok_or_else(|| UsageError::new("name the directory of a mount"))?;
    let shown = given.display();
    let directory = mountpoint::absolute(given).with_context(|| format!("{shown}"))?;
    let entry = mountpoint::mounted_on(&directory)?.filter(|entry| entry.kind == MOUNT_TYPE);
    let entry = entry
        .with_context(|| format!("{shown} is no Holdfast mount: `holdfast status` lists them"))?;
    let words = options_after(&entry, args);
    let mut options = MountOptions::new(&entry.source);
    apply(&mut options, std::slice::from_ref(&words))?;
    let as_it_was = || format!("{shown} stays as it was");
    let server = server_of(&entry.device).with_context(as_it_was)?;
    let mut spec = RemountSpec { device: entry.device, options: words, is_trial: true };
    ask(&server, &spec).with_context(as_it_was)?;
    spec.is_trial = false;
    // The kernel refuses to become read-only while a file is open for writing, so it must change
    // before the server.
    if options.is_read_only {
        remount(&directory, &options)?;
        ask(&server, &spec).with_context(|| {
            format!(
                "{shown} is read-only for programs, but its server has not agreed, and what was \
                 written last may not be durable"
            )
        })?;
    } else {
        ask(&server, &spec).with_context(as_it_was)?;
        remount(&directory, &options)?;
    }
    let how = if options.is_read_only { "read-only" } else { "to be read and written" };
    let facts = json!({
        "remounted": directory.to_string_lossy(),
        "is_read_only": options.is_read_only,
    });
    output.fact(&format!("{shown} is mounted {how}"), &facts);
    Ok(exit::DONE)
}

/// Returns the current options of the mount, then the given ones, which override them.
fn options_after(entry: &MountEntry, args: &MountArgs) -> String {
    let (of_all, own) = &entry.options;
    let access = if entry.is_read_only() { "ro" } else { "rw" };
    let given = args.options.iter().map(String::as_str);
    [of_all, own, access].into_iter().chain(given).collect::<Vec<_>>().join(",")
}

fn apply(options: &mut MountOptions, given: &[String]) -> Result<(), UsageError> {
    for words in given {
        options.apply(words).map_err(|error| UsageError::new(error.to_string()))?;
    }
    Ok(())
}

fn remount(directory: &Path, options: &MountOptions) -> anyhow::Result<()> {
    let shown = directory.display();
    mountpoint::remount(directory, options).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => anyhow::anyhow!(
            "{shown} stays as it was: files are open to be written: close them (`fuser -vm \
             {shown}` lists the processes)"
        ),
        Some(Errno::PERM) => anyhow::anyhow!("{shown}: only root may change how it is mounted"),
        Some(_) | None => anyhow::anyhow!("{shown} cannot be mounted otherwise: {error}"),
    })
}

/// Returns the server of the mount with this device number. Mounts of mounters do not count,
/// because a mounter reports the number itself.
fn server_of(device: &str) -> anyhow::Result<DiscoveredServer> {
    let serves = |found: &DiscoveredServer| {
        let mounts = found.status["server"]["mounts"].as_array();
        let is_it = |mount: &Value| mount["device"] == device && mount["mounter"].is_null();
        mounts.is_some_and(|mounts| mounts.iter().any(is_it))
    };
    let found = status::all()?.into_iter().find(serves);
    let found = found.context("its server is not found: `holdfast status`")?;
    anyhow::ensure!(found.advice().is_empty(), "{}", found.advice());
    Ok(found)
}

fn ask(server: &DiscoveredServer, spec: &RemountSpec) -> anyhow::Result<()> {
    let request = serde_json::to_value(spec)?;
    let question = WireRequest::Remount { version: control::VERSION, request };
    match status::ask(&server.socket, &question)? {
        WireAnswer::Mounted(_) => Ok(()),
        WireAnswer::Error(error) => anyhow::bail!(error),
        WireAnswer::Closing => anyhow::bail!(status::CLOSING),
        WireAnswer::Status(_)
        | WireAnswer::Explain(_)
        | WireAnswer::Control(_)
        | WireAnswer::Ready
        | WireAnswer::Progress { .. }
        | WireAnswer::Transferred(_) => {
            anyhow::bail!("the server answered nonsense: is it a `holdfast` of another version?")
        }
    }
}
