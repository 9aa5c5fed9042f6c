//! `holdfast demo`: makes a pool if there is none, mounts it and shows it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::args::{DemoArgs, MountArgs, PlacementName, TransportName};
use crate::backend::{Backend, CreateOptions};
use crate::command::{create, mount, status as status_command};
use crate::output::Output;
use crate::size::ByteSize;
use crate::status;

pub(crate) fn run(args: &DemoArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let (device, directory) = (args.directory.join("pool.hf"), args.directory.join("mnt"));
    // A dead mount is still a directory, though it cannot be looked at.
    if std::fs::symlink_metadata(&directory)
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    {
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    if device.exists() {
        output.remark(&format!("Using the pool {}.", device.display()));
    } else {
        output.remark(&format!("Making a pool of {} in {}.", args.size, device.display()));
        create::create(backend, create_options(&device, args.size.0))?;
    }
    let mount_args = mount_args(&device, &directory);
    mount::serve(&mount_args, backend, &mut |text, value| {
        output.fact(text, value);
        // While it is served, so that what is shown is what a user would see.
        if let Some(found) = status::find(&directory)? {
            output.fact(&status_command::text_of(&found, false), &found.status);
        }
        output.remark(&format!(
            "Try:  cp -r /etc {0}/ ; ls -l {0} ; df -h {0}\nEnd:  ^C here, or \
             holdfast unmount {0}",
            directory.display()
        ));
        Ok(())
    })
}

fn create_options(device: &Path, size_bytes: u64) -> CreateOptions {
    CreateOptions {
        devices: vec![device.to_owned()],
        layout: format::members::Layout::Single,
        size_bytes: Some(size_bytes),
        fragment_bytes: 4096,
        block_bytes: 16_384,
        group_bytes: None,
        journal_bytes: None,
        label: "demo".to_owned(),
        owner_uid: rustix::process::geteuid().as_raw(),
        owner_gid: rustix::process::getegid().as_raw(),
        is_forced: false,
    }
}

fn mount_args(device: &Path, directory: &Path) -> MountArgs {
    MountArgs {
        transport: TransportName::Dev,
        device: device.to_owned(),
        directory: directory.to_owned(),
        daemon: false,
        options: Vec::new(),
        cache: ByteSize(256 << 20),
        placement: PlacementName::Log,
        commit_interval: Duration::from_secs(5),
        device_deadline: storage::device::DEADLINE_DEFAULT,
        members: crate::args::members::MemberArgs::default(),
        force: false,
        threads: None,
        poll_us: None,
        writeback_cache: false,
        log_file: None,
        answer_parent: false,
    }
}
