//! Requests about the quotas of users, groups and projects of an open pool.

use std::path::Path;

use engine::api::FsError;
use engine::{Pool, QuotaAccount, QuotaInfo, QuotaLimitsChange, QuotaProgress};
use format::fileset::FilesetName;

use super::failed;
use super::requests::refused_by;
use crate::backend::BackendError;
use control::{
    ACCOUNTS_MAX, AccountFacts, Answer, OwnerKind, OwnerLimitsChange, QuotaFacts, QuotaStateName,
    Request, name_of,
};

pub(super) fn control(path: &Path, pool: &Pool, request: &Request) -> Result<Answer, BackendError> {
    let named = |name: &str| name_of(name).map_err(|cause| failed(path, cause));
    #[allow(clippy::wildcard_enum_match_arm, reason = "whoever calls has sorted them out")]
    let done = match request {
        Request::QuotaOn { fileset } => switch_on(pool, &named(fileset)?),
        Request::QuotaOff { fileset } => {
            pool.fileset_admin().switch_quotas_off(&named(fileset)?).map(|()| Answer::Done)
        }
        Request::QuotaSet { fileset, kind, id, limits } => {
            set(pool, &named(fileset)?, (*kind, *id), limits)
        }
        Request::QuotaGrace { fileset, blocks_seconds, inodes_seconds } => {
            let graces = [*blocks_seconds, *inodes_seconds];
            pool.fileset_admin().set_quota_graces(&named(fileset)?, graces).map(|()| Answer::Done)
        }
        Request::QuotaProject { fileset, path: inside, project, is_recursive } => {
            let how = (*project, *is_recursive);
            let changed =
                pool.fileset_admin().set_project(&named(fileset)?, &parts_of(inside), how);
            changed.map(Answer::Count)
        }
        Request::QuotaReport { fileset, kind, from } => {
            report(pool, &named(fileset)?, (*kind, *from))
        }
        _ => Err(FsError::NotSupported),
    };
    done.map_err(|error| {
        if error != FsError::Invalid {
            return refused_by(path, pool, &error);
        }
        let bounds = "id 0 has no limits, a soft limit is not above the hard one, and a grace is a \
                      hundred years at most";
        failed(path, bounds)
    })
}

pub(super) fn parts_of(path: &str) -> Vec<&[u8]> {
    path.split('/').filter(|part| !part.is_empty()).map(str::as_bytes).collect()
}

fn switch_on(pool: &Pool, fileset: &FilesetName) -> Result<Answer, FsError> {
    pool.fileset_admin().switch_quotas_on(fileset)?;
    pool.fileset_admin().quota_info(fileset).map(|info| Answer::Quota(facts_of(&info)))
}

fn set(
    pool: &Pool,
    fileset: &FilesetName,
    (kind, id): (OwnerKind, u32),
    limits: &OwnerLimitsChange,
) -> Result<Answer, FsError> {
    let change = QuotaLimitsChange {
        bytes_soft: limits.blocks_soft_bytes,
        bytes_hard: limits.blocks_hard_bytes,
        inodes_soft: limits.inodes_soft,
        inodes_hard: limits.inodes_hard,
    };
    pool.fileset_admin().set_quota(fileset, (kind.kind(), id), &change).map(|()| Answer::Done)
}

fn report(
    pool: &Pool,
    fileset: &FilesetName,
    (kind, from): (OwnerKind, u32),
) -> Result<Answer, FsError> {
    let quota = facts_of(&pool.fileset_admin().quota_info(fileset)?);
    let mut found = Vec::new();
    if quota.state != QuotaStateName::Off {
        found =
            pool.fileset_admin().quota_accounts(fileset, (kind.kind(), from), ACCOUNTS_MAX + 1)?;
    }
    let next = found.get(ACCOUNTS_MAX).map(|account| account.id);
    let list = found.iter().take(ACCOUNTS_MAX).map(|account| account_facts(kind, account));
    Ok(Answer::QuotaAccounts { quota, list: list.collect(), next })
}

fn facts_of(info: &QuotaInfo) -> QuotaFacts {
    let (state, counted_permille) = match info.progress {
        QuotaProgress::Off => (QuotaStateName::Off, None),
        QuotaProgress::Counting(permille) => (QuotaStateName::Counting, Some(permille)),
        QuotaProgress::On => (QuotaStateName::On, None),
    };
    QuotaFacts {
        state,
        counted_permille,
        blocks_grace_seconds: info.bytes_grace_seconds,
        inodes_grace_seconds: info.inodes_grace_seconds,
    }
}

fn account_facts(kind: OwnerKind, account: &QuotaAccount) -> AccountFacts {
    let some = |value: u64| (value > 0).then_some(value);
    AccountFacts {
        kind,
        id: account.id,
        used_bytes: account.bytes,
        inodes: account.inodes,
        blocks_soft_bytes: some(account.bytes_soft),
        blocks_hard_bytes: some(account.bytes_hard),
        inodes_soft: some(account.inodes_soft),
        inodes_hard: some(account.inodes_hard),
        blocks_grace_end_seconds: some(account.bytes_grace_end),
        inodes_grace_end_seconds: some(account.inodes_grace_end),
    }
}
