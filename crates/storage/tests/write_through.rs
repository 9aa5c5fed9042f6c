//! What a block device below a device is asked.
//!
//! In a process of its own: a program that is started has for a moment all that is open here, the
//! locks of other tests' devices too.

use std::path::{Path, PathBuf};
use std::process::Command;

use storage::device::{
    AlignedBuffer, Device, DeviceError, DeviceOpenError, DeviceOperation, FileDevice, FileOptions,
    FileTransportChoice, IoPurpose, SharedBytes,
};

/// A block device over a file, for as long as this lives.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `None`, and why on the terminal, where there are none.
    fn over(file: &Path) -> Option<LoopDevice> {
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let attached = attached.ok().filter(|output| output.status.success());
        if attached.is_none() {
            eprintln!("SKIPPED: no loop device can be had here");
        }
        let name = String::from_utf8(attached?.stdout).ok()?;
        Some(LoopDevice(name.trim().into()))
    }

    /// Returns how many flushes the device has done: the sixteenth field of its statistics (Linux,
    /// `Documentation/block/stat.rst`).
    fn flushes(&self) -> u64 {
        let count = self.says("stat").split_whitespace().nth(15).map(str::parse);
        count.expect("since Linux 5.5").expect("a count")
    }

    /// Returns what the kernel says of the device.
    fn says(&self, attribute: &str) -> String {
        let name = self.0.file_name().expect("a device has a name").display();
        std::fs::read_to_string(format!("/sys/block/{name}/{attribute}")).expect("Linux")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Goal: what is written through is durable below, and not only called so. Method: a loop device
/// takes no write that is durable by itself, so the kernel flushes it behind each.
#[test]
fn a_write_through_flushes_a_device_that_can_do_no_better() {
    const COUNT: u64 = 10;
    let page = || AlignedBuffer::copy_of(&[7; 4096]);
    for transport in [FileTransportChoice::Pread, FileTransportChoice::Uring] {
        let name = format!("holdfast-through-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![0; 1 << 20]).expect("there is room");
        let below = LoopDevice::over(&path);
        // The device keeps it open.
        std::fs::remove_file(&path).expect("it was written");
        let Some(below) = below else { return };
        if below.says("queue/fua").trim() != "0" {
            eprintln!("SKIPPED: loop devices of this kernel take durable writes");
            return;
        }
        let device =
            match FileDevice::open(&below.0, FileOptions { transport, ..FileOptions::default() }) {
                Ok(device) => device,
                Err(DeviceOpenError::NoUring { source, .. }) => {
                    eprintln!("SKIPPED io_uring: {source}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
        assert!(device.info().has_write_through);
        let before = below.flushes();
        for nth in 0..COUNT {
            device.write(IoPurpose::Journal, nth * 4096, page()).expect("the disk works");
        }
        let between = below.flushes();
        for nth in 0..COUNT {
            let data = vec![SharedBytes::from(page())];
            let through = DeviceOperation::WriteThrough { offset: nth * 4096, data };
            device.submit(IoPurpose::Journal, through).wait().expect("the disk works");
        }
        let (plain, through) = (between - before, below.flushes() - between);
        assert!(plain == 0 && through >= COUNT, "{transport:?}: {plain}, {through}");
    }
}

/// Goal: a discard of a block device reaches what is below it, by every transport, and harms
/// nothing beside it. Method: a loop device punches a hole into its file.
#[test]
fn a_discard_of_a_block_device_gives_back_what_is_below_it() {
    use std::os::unix::fs::MetadataExt;
    const BYTES: usize = 1 << 20;
    for transport in [FileTransportChoice::Pread, FileTransportChoice::Uring] {
        let name = format!("holdfast-discard-{}-{transport:?}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![7; BYTES]).expect("there is room");
        let file = std::fs::File::open(&path).expect("just written");
        let below = LoopDevice::over(&path);
        std::fs::remove_file(&path).expect("it was written");
        let Some(below) = below else { return };
        let options = FileOptions { transport, ..FileOptions::default() };
        let device = match FileDevice::open(&below.0, options) {
            Ok(device) => device,
            Err(DeviceOpenError::NoUring { source, .. }) => {
                eprintln!("SKIPPED io_uring: {source}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!device.info().is_sparse, "a block device");
        let blocks = || file.metadata().expect("it is open").blocks();
        let before = blocks();
        let discard = DeviceOperation::Discard { offset: 1 << 18, length_bytes: 1 << 19 };
        match device.submit(IoPurpose::Cleaner, discard).wait() {
            Ok(_) => {}
            Err(DeviceError::NoDiscard { .. }) => {
                eprintln!("SKIPPED: the file system below has no holes");
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(blocks() + 1000 < before, "{transport:?}: {before} blocks, {}", blocks());
        let read = device.read(IoPurpose::Data, 0, BYTES).expect("the disk works");
        let is_kept = |range: std::ops::Range<usize>| read[range].iter().all(|byte| *byte == 7);
        assert!(is_kept(0..1 << 18) && is_kept(3 << 18..BYTES), "{transport:?}");
    }
}
