//! A backend whose pools are files that say what they are, and whose files are in memory.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use cli::backend::{
    Backend, BackendError, CheckReport, CreateOptions, CreateReport, DefectReport, DumpReport,
    ExplainStep, ExplainTarget, Members, OnProgress, OpenOptions, OpenPool, ProveOptions,
    ProveReport, TortureFinding, TortureOptions, TortureReport,
};
use cli::control::{Answer, Peer, Request};
use cli::transfer::{OnBytes, Transfer};
use engine::vnode::api::{FileSystem, FilesetUuid};
use format::fileset::{FilesetName, NamePart};
use serde_json::{Value, json};

use crate::memory_fs::MemoryFs;

/// What a good pool says.
pub(crate) const POOL: &str = "a pool";
/// What a pool with a defect says.
pub(crate) const DAMAGED_POOL: &str = "a damaged pool";
/// What a pool says that was closed.
pub(crate) const CLOSED_POOL: &str = "a pool, closed";
/// What a pool says whose device fails when it is closed.
pub(crate) const FAILING_POOL: &str = "a pool, on a bad device";
/// The seed that torture finds something with.
pub(crate) const BAD_SEED: u64 = 13;

pub(crate) struct FakeBackend;

struct FakePool {
    fs: Arc<MemoryFs>,
    options: OpenOptions,
}

impl OpenPool for FakePool {
    fn hold_fileset(
        &self,
        _: Option<&FilesetName>,
        _: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        Ok(self.file_system().main_fileset())
    }

    fn release_fileset(&self, _: FilesetUuid) {}

    fn fileset_name(&self, _: FilesetUuid) -> Option<String> {
        None
    }

    fn secret(&self) -> [u8; 16] {
        [0; 16]
    }

    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.fs.clone()
    }

    fn status(&self) -> Value {
        json!({ "cache_bytes": self.options.cache_bytes, "placement": self.options.placement })
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        let step = ExplainStep { layer: "target".to_owned(), fact: format!("{target:?}") };
        Ok(vec![step])
    }

    fn control(&self, request: &Request, _peer: Peer) -> Result<Answer, BackendError> {
        let cause = format!("it has no filesets: {request:?}");
        Err(BackendError::Failed { device: self.options.device.clone(), cause })
    }

    fn transfer(
        &self,
        request: &Transfer,
        _peer: Peer,
        _file: &mut File,
        _fronts: Option<Arc<dyn FileSystem>>,
        _progress: OnBytes<'_>,
    ) -> Result<Value, BackendError> {
        let cause = format!("it has no filesets: {request:?}");
        Err(BackendError::Failed { device: self.options.device.clone(), cause })
    }

    fn close(&self) -> Result<(), BackendError> {
        let device = &self.options.device;
        if read(device)? == FAILING_POOL {
            let cause = "a write failed".to_owned();
            return Err(BackendError::Failed { device: device.clone(), cause });
        }
        fs::write(device, CLOSED_POOL).expect("the test's own file");
        Ok(())
    }
}

fn read(device: &Path) -> Result<String, BackendError> {
    let content = fs::read_to_string(device)
        .map_err(|_| BackendError::Missing { device: device.to_owned() })?;
    if [POOL, DAMAGED_POOL, CLOSED_POOL, FAILING_POOL].contains(&content.as_str()) {
        return Ok(content);
    }
    let found = "not a Holdfast pool".to_owned();
    Err(BackendError::Foreign { device: device.to_owned(), found })
}

impl Backend for FakeBackend {
    fn create(&self, options: &CreateOptions) -> Result<CreateReport, BackendError> {
        fs::write(&options.devices[0], POOL).expect("the test's own file");
        Ok(CreateReport {
            pool_id: "0".repeat(32),
            size_bytes: options.size_bytes.unwrap_or(0),
            fragment_bytes: options.fragment_bytes,
            block_bytes: options.block_bytes,
            group_bytes: 1 << 30,
            group_count: 16,
            journal_bytes: 64 << 20,
            pages_written: 12,
            warnings: Vec::new(),
        })
    }

    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
        read(&options.device)?;
        Ok(Arc::new(FakePool { fs: Arc::new(MemoryFs::new()), options: options.clone() }))
    }

    fn open_in_memory(&self, _size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        Err(BackendError::Failed { device: "memory".into(), cause: "not in these tests".into() })
    }

    fn check(
        &self,
        device: &Path,
        _members: &Members,
        memory_bytes_max: u64,
        progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError> {
        let content = read(device)?;
        progress("pages", 1, 1);
        let mut report = CheckReport { pages_read: 1, ..CheckReport::default() };
        if memory_bytes_max < 1 << 20 {
            report.stopped = Some("it needs more memory".to_owned());
        }
        if content == DAMAGED_POOL {
            let (code, message) = ("AG001".to_owned(), "free count is wrong".to_owned());
            report.defects.push(DefectReport { code, message });
        }
        Ok(report)
    }

    fn dump(
        &self,
        device: &Path,
        _members: &Members,
        what: &str,
    ) -> Result<DumpReport, BackendError> {
        let text = format!("{what}: {}", read(device)?);
        Ok(DumpReport { value: json!({ "text": text }), text })
    }

    fn explain(
        &self,
        device: &Path,
        _members: &Members,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        read(device)?;
        let step = ExplainStep { layer: "target".to_owned(), fact: format!("{target:?}") };
        Ok(vec![step])
    }

    fn torture(
        &self,
        options: &TortureOptions,
        progress: OnProgress<'_>,
    ) -> Result<TortureReport, BackendError> {
        let TortureOptions { seed_first, seed_count, .. } = *options;
        let mut report = TortureReport { seeds: seed_count, ..TortureReport::default() };
        for seed in seed_first..seed_first + seed_count {
            progress("seeds", seed - seed_first + 1, seed_count);
            if seed == BAD_SEED {
                report.findings.push(TortureFinding { seed, message: "lost a file".to_owned() });
            }
        }
        Ok(report)
    }

    fn prove(
        &self,
        options: &ProveOptions,
        progress: OnProgress<'_>,
    ) -> Result<ProveReport, BackendError> {
        progress("workloads", 1, 1);
        Ok(ProveReport { bound: options.bound, workloads: 1, ..ProveReport::default() })
    }
}
