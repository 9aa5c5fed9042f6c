//! Mixes of calls.

use runtime::prng::Prng;

/// NFSv3 procedures in the mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Procedure {
    /// GETATTR.
    Getattr,
    /// SETATTR.
    Setattr,
    /// LOOKUP.
    Lookup,
    /// ACCESS.
    Access,
    /// READLINK.
    Readlink,
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// CREATE.
    Create,
    /// REMOVE.
    Remove,
    /// READDIR.
    Readdir,
    /// READDIRPLUS.
    Readdirplus,
    /// FSSTAT.
    Fsstat,
    /// FSINFO.
    Fsinfo,
    /// COMMIT.
    Commit,
}

impl Procedure {
    /// All procedures, in the order of RFC 1813.
    pub const ALL: [Procedure; 14] = [
        Procedure::Getattr,
        Procedure::Setattr,
        Procedure::Lookup,
        Procedure::Access,
        Procedure::Readlink,
        Procedure::Read,
        Procedure::Write,
        Procedure::Create,
        Procedure::Remove,
        Procedure::Readdir,
        Procedure::Readdirplus,
        Procedure::Fsstat,
        Procedure::Fsinfo,
        Procedure::Commit,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Procedure::Getattr => "GETATTR",
            Procedure::Setattr => "SETATTR",
            Procedure::Lookup => "LOOKUP",
            Procedure::Access => "ACCESS",
            Procedure::Readlink => "READLINK",
            Procedure::Read => "READ",
            Procedure::Write => "WRITE",
            Procedure::Create => "CREATE",
            Procedure::Remove => "REMOVE",
            Procedure::Readdir => "READDIR",
            Procedure::Readdirplus => "READDIRPLUS",
            Procedure::Fsstat => "FSSTAT",
            Procedure::Fsinfo => "FSINFO",
            Procedure::Commit => "COMMIT",
        }
    }

    pub(super) fn number(self) -> u32 {
        match self {
            Procedure::Getattr => 1,
            Procedure::Setattr => 2,
            Procedure::Lookup => 3,
            Procedure::Access => 4,
            Procedure::Readlink => 5,
            Procedure::Read => 6,
            Procedure::Write => 7,
            Procedure::Create => 8,
            Procedure::Remove => 12,
            Procedure::Readdir => 16,
            Procedure::Readdirplus => 17,
            Procedure::Fsstat => 18,
            Procedure::Fsinfo => 19,
            Procedure::Commit => 21,
        }
    }
}

/// A mix of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// The mix of nhfsstone and LADDIS: NFSv2 calls, with stable writes.
    Laddis,
    /// The mix of SFS 97 for NFSv3: unstable writes, and COMMIT.
    Sfs97,
}

impl Mix {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mix::Laddis => "laddis",
            Mix::Sfs97 => "sfs97",
        }
    }

    /// Returns the source of the shares.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Mix::Laddis => {
                "nhfsstone's, as LADDIS has them (M. Wittle, B. Keith, LADDIS: The Next Generation \
                 in NFS File Server Benchmarking, USENIX Summer 1993)"
            }
            Mix::Sfs97 => {
                "SPEC SFS 97 (2.0 and 3.0) for NFSv3 (D. Robinson, The Advancement of NFS \
                 Benchmarking: SFS 2.0, LISA 1999)"
            }
        }
    }

    pub(super) fn is_stable(self) -> bool {
        self == Mix::Laddis
    }

    /// Returns the shares in percent.
    #[must_use]
    pub fn shares(self) -> &'static [(Procedure, u64)] {
        match self {
            Mix::Laddis => &[
                (Procedure::Lookup, 34),
                (Procedure::Read, 22),
                (Procedure::Write, 15),
                (Procedure::Getattr, 13),
                (Procedure::Readlink, 8),
                (Procedure::Readdir, 3),
                (Procedure::Create, 2),
                (Procedure::Remove, 1),
                (Procedure::Setattr, 1),
                (Procedure::Fsstat, 1),
            ],
            Mix::Sfs97 => &[
                (Procedure::Lookup, 27),
                (Procedure::Read, 18),
                (Procedure::Getattr, 11),
                (Procedure::Write, 9),
                (Procedure::Readdirplus, 9),
                (Procedure::Readlink, 7),
                (Procedure::Access, 7),
                (Procedure::Commit, 5),
                (Procedure::Readdir, 2),
                (Procedure::Create, 1),
                (Procedure::Remove, 1),
                (Procedure::Setattr, 1),
                (Procedure::Fsstat, 1),
                (Procedure::Fsinfo, 1),
            ],
        }
    }

    pub(super) fn choose(self, prng: &mut Prng) -> Procedure {
        let mut left = prng.below(100);
        for (procedure, share) in self.shares() {
            if left < *share {
                return *procedure;
            }
            left -= share;
        }
        Procedure::Getattr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_and_are_kept() {
        for mix in [Mix::Laddis, Mix::Sfs97] {
            assert_eq!(mix.shares().iter().map(|(_, share)| share).sum::<u64>(), 100);
            let mut prng = Prng::from_seed(1);
            let chosen: Vec<Procedure> = (0..100_000).map(|_| mix.choose(&mut prng)).collect();
            for procedure in Procedure::ALL {
                let share = mix.shares().iter().find(|(it, _)| *it == procedure);
                let expected = share.map_or(0, |(_, share)| share * 1000);
                let count = chosen.iter().filter(|it| **it == procedure).count();
                let differ = u64::try_from(count).expect("it is small").abs_diff(expected);
                assert!(differ <= 20 + expected / 10, "{mix:?} {procedure:?}: {count}");
            }
        }
    }
}
