//! After a device lied: is every answer the right one, or an error that says so (TR5)?

use engine::api::{FileSystem, FsError};

use super::Fault;
use crate::canon::{Data, PAGE_BYTES, Times, WalkError, walk};
use crate::crash::{Finding, History, Reason, judge};
use crate::model::Model;
use crate::number::u64_of;
use crate::ops::{Op, Outcome, Place, Route, Session, Step};

fn is_telling(error: &FsError) -> bool {
    matches!(error, FsError::Corrupt { .. } | FsError::Io { .. } | FsError::ReadOnly { .. })
}

/// Asks `fs` for everything that `model` has below `top`; returns how many answers were errors
/// that tell of damage.
pub(super) fn survey(
    client: usize,
    model: &Model,
    top: &Route,
    fs: &dyn FileSystem,
) -> Result<u64, Fault> {
    let tree = walk(model, Times::Ignored).map_err(|error| Fault::Unusable(error.to_string()))?;
    let mut expected = Session::new(model, Times::Ignored);
    let mut session = Session::new(fs, Times::Ignored);
    let mut told = 0;
    for (path, &index) in &tree.names {
        let route = Route(path.0.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect());
        if !route.0.starts_with(&top.0) {
            continue;
        }
        let file = Place::At(route);
        let mut questions = vec![Op::GetAttr { file: file.clone() }];
        match &tree.inodes[index].data {
            Data::Pages(pages) => questions.extend(pages.keys().map(|number| Op::Read {
                file: file.clone(),
                offset: number * u64_of(PAGE_BYTES),
                length: PAGE_BYTES,
            })),
            Data::Target(_) => questions.push(Op::ReadLink { file }),
            Data::Nothing => questions.push(Op::List { directory: file }),
        }
        for step in questions.into_iter().map(Step::root) {
            let (right, found) = (expected.apply(&step).outcome, session.apply(&step).outcome);
            if let Outcome::Refused(error) = &found
                && is_telling(error)
            {
                told += 1;
            } else if !right.agrees(&found) {
                let (told, expected) = (format!("{found:?}"), format!("{right:?}"));
                return Err(Fault::Answer { client, step: step.to_string(), told, expected });
            }
        }
    }
    Ok(told)
}

/// The same of a pool that failed before it was closed: what was not synced may be lost.
pub(super) fn survey_after_failure(history: &History, fs: &dyn FileSystem) -> Result<u64, Fault> {
    let is_told = |finding: &Finding| {
        matches!(&finding.reason,
            Reason::Walk(WalkError::Failed { error, .. }) if is_telling(error))
    };
    match judge(history, fs) {
        Ok(_) => Ok(0),
        Err(findings) if findings.iter().all(is_told) => Ok(1),
        Err(findings) => Err(Fault::Survivor(findings.iter().map(ToString::to_string).collect())),
    }
}
