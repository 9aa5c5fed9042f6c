//! A backend whose pools are files that say what they are, and whose files are in memory.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use control::wire::ExplainStep;
use control::{Answer, Request, Transfer};
use engine::api::{FileSystem, FilesetUuid};
use format::fileset::{FilesetName, NamePart};
use serde_json::{Value, json};
use server::backend::{
    Backend, BackendCreateOptions, BackendError, BackendOpenOptions, CheckReport, CreateReport,
    DefectReport, DumpReport, ExplainTarget, MemberSearchOptions, OnProgress, OpenPool,
};
use server::peer::Peer;
use server::transfer::OnTransfer;

use crate::memory_fs::MemoryFs;

/// What a good pool says.
pub(crate) const POOL: &str = "a pool";
/// What a pool with a defect says.
pub(crate) const DAMAGED_POOL: &str = "a damaged pool";
/// What a pool says that was closed.
pub(crate) const CLOSED_POOL: &str = "a pool, closed";
/// What a pool says whose device fails when it is closed.
pub(crate) const FAILING_POOL: &str = "a pool, on a bad device";

pub(crate) struct FakeBackend;

struct FakePool {
    fs: Arc<MemoryFs>,
    options: BackendOpenOptions,
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
        _progress: OnTransfer<'_>,
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
    fn create(&self, options: &BackendCreateOptions) -> Result<CreateReport, BackendError> {
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

    fn open(&self, options: &BackendOpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
        read(&options.device)?;
        Ok(Arc::new(FakePool { fs: Arc::new(MemoryFs::new()), options: options.clone() }))
    }

    fn open_in_memory(&self, _size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        Err(BackendError::Failed { device: "memory".into(), cause: "not in these tests".into() })
    }

    fn check(
        &self,
        device: &Path,
        _members: &MemberSearchOptions,
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
        _members: &MemberSearchOptions,
        what: &str,
    ) -> Result<DumpReport, BackendError> {
        let text = format!("{what}: {}", read(device)?);
        Ok(DumpReport { value: json!({ "text": text }), text })
    }

    fn explain(
        &self,
        device: &Path,
        _members: &MemberSearchOptions,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        read(device)?;
        let step = ExplainStep { layer: "target".to_owned(), fact: format!("{target:?}") };
        Ok(vec![step])
    }
}
