//! Bugs planted on purpose, to prove that tests find them.
//!
//! The feature `planted` compiles them in; the environment variable `HOLDFAST_PLANTED` enables one.
//! Each place in the product is one line, with one of the macros below.
//! `tests/planted` runs the suites against each, and `docs/TESTING.md` lists them.

macro_rules! bugs {
    ($($name:ident: $what:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Planted {
            $(#[doc = $what] $name,)*
        }

        /// Every bug, with its name and effect.
        pub const PLANTED: &[(Planted, &str, &str)] =
            &[$((Planted::$name, stringify!($name), $what),)*];
    };
}

bugs! {
    CommitWithoutFlush: "A commit is acknowledged before the device has flushed the log (J1).",
    MemberBehindAcknowledged:
        "The waiters of a group commit are acknowledged before it is written.",
    SyncCompletedEarly:
        "The callback of an async fsync runs as soon as another write of the log has ended.",
    DataNotFlushed: "The data that a commit points to is written and not flushed.",
    HomeBeforeLog: "Pages are written back before their log records are durable (K1).",
    HeadBeforeHome: "The head that moves the tail is written before the pages are durable at home.",
    NewbornPagesLast: "Newborn pages are not flushed before the pages that point to them (K2).",
    DoubleWriteSkipped:
        "Pages between which content moved are written back without the double-write area.",
    LsnsNotListed: "A checkpoint does not list the LSNs of the pages that it writes back (LP2).",
    RecoveredLsnsNotListed: "Recovery does not list the LSNs of the pages that it writes back.",
    LsnNotCompared: "A stale page is used, though its LSN page lists a newer LSN.",
    FirstCopyTaken: "Of copies of a page the first that verifies is used, not the newest (CY1).",
    RebuiltFromStale: "A rebuild of a mirror copies an older page than another source has.",
    OlderCopyLeft: "A repair leaves stale copies of a page that verify (CY2).",
    LsnAboveEndTaken: "A copy whose LSN is above the end of the log is used (CY1).",
    TailPastDirtyPages:
        "The tail of the log moves past records of pages that are not written back.",
    TailPastLogData: "The tail of the log moves past inline log data that is not in its segment.",
    UndoForgotten: "Recovery leaves the changes of classes without a commit.",
    MergeForgotten: "Recovery keeps a class without the classes that were merged into it.",
    ClassSplit: "A transaction that touches pages of two classes does not merge them (T1).",
    LogDataLost: "Recovery does not write inline log data to its segment.",
    ChunkChecksumNotCompared: "A torn chunk of the log counts as whole.",
    RecoveryNotFlushed: "Recovery ends the log before its pages are durable at home.",
    FreedSpaceUsedAtOnce: "Freed fragments are allocated again before the checkpoint (G2).",
    DoubleFree: "A truncate frees the same extents twice.",
    PageChecksumNotCompared: "A metadata page is used without a check of its checksum and header.",
    DataChecksumNotCompared: "A read returns data that does not match its checksum.",
    DirtyPageEvicted: "The cache evicts a page whose changes are not written back (U1).",
    OrphanForgotten: "A file that loses its last name is not entered in the orphan list (F2).",
    AnodeReusedEarly: "A freed anode is used again before the checkpoint (F3).",
    JoinedPagesLoseNames: "Two pages of a directory are merged without the names of one.",
    RenameLoop: "A directory may be renamed into its own subtree.",
    RenameReliesOnUndone: "A directory moves below another, whose own move a crash may still undo.",
    NonEmptyDirectoryRemoved: "A directory with names in it can be removed.",
    TailNotZeroed: "Old bytes behind the end of a file become readable when the file grows.",
    CutOffBytesInstalled:
        "Blocks behind the last one on disk are installed before its new version (V4).",
    SizePastWrites: "The size on disk is raised past the end of every write (V3).",
    SetuidKept: "A write by an unprivileged user leaves the setuid bit.",
    StickyIgnored: "A user may remove the names of other users from a sticky directory.",
    AclNotInherited: "A new file does not get the default access list of its directory.",
    InFlightNotSeen: "A read of data whose write is in flight goes to the device.",
    SealedBlockRewritten: "A block whose write is in flight changes (SG1).",
    DeletionCursorKept:
        "The walk that deletes a fileset frees blocks that it has freed already (DL1).",
    GateNotHeldByWrites: "A write changes a file while its fileset is quiesced (GT2).",
    SnapshotLeavesBlocksWaiting: "A snapshot is taken before all accepted writes are in the maps.",
    SnapshotCommitsItsClassAlone:
        "A snapshot is acknowledged before all changes that it holds are durable.",
    SharedPageEdited: "A page that a snapshot holds is changed in place (US1).",
    SharedBlockFreed: "A block that a snapshot holds is freed when its fileset drops it (US5).",
    CopyNotToldToFile: "A file in memory keeps its old map after a copy-on-write.",
    DeletionForgetsParent:
        "The deletion of a snapshot frees blocks that the snapshot before it holds (DL3).",
    DeletionForgetsChild: "The deletion of a snapshot frees blocks that its successors hold (DL3).",
    EntryReliesOnUndone:
        "The deletion of a snapshot relies on table entries that a crash may undo (FT5).",
    AcceptedNotCounted:
        "Accepted writes that are not on disk yet do not count for the quota (QT2).",
    WaitingOfUserNotCounted: "Accepted writes do not count for the limits of their user (QA2).",
    CloneOwnsItsSnapshot: "A clone changes pages in place that its snapshot holds (FK1).",
    RestoredFilesKept: "Files of a fileset stay in memory when it is restored.",
    HoldIgnored: "A snapshot is deleted in spite of a hold.",
    OneCopyAcknowledged:
        "A write to a mirror is acknowledged when its first copy is written (MS1).",
    FailureNotLabelled: "A member fails, and the labels are not updated (MS1).",
    JoiningMissesWrites: "A joining member does not get the writes of the pool (MS4).",
    AbsentNotLeftBehind: "A pool is changed while a member is absent, and no label records it.",
    OlderCopyBelieved:
        "A member with an older label than the others is read as if it were current (MJ7).",
    LogsNotMadeEqual: "Recovery replays the log of one member and leaves shorter logs of others.",
    LogGoesByItsOwnHead: "The end of a member's log is judged by its own head, not by the newest.",
    CopiedWithoutHold:
        "A piece is copied to a joining member while a write to it is in flight (JN1).",
    RepairWithoutHold: "A bad copy is rewritten while a write to its range is in flight (RH1).",
    StripeNotPadded:
        "A flush leaves a partial stripe, which the next one continues (decision 0065).",
    CopiesOnOneMember: "Both copies of a page lie on one member (SP3).",
    ParityForgotten: "A stripe is written with a parity of zeros (R5).",
    LogDataWithoutParity:
        "Recovery does not rewrite a stripe whose parity does not match (decision 0065).",
    JoiningTakenForAway:
        "Recovery overwrites rows of a joining member with reconstructed contents (RK3).",
    RebuildSkipsOpen: "A rebuild skips a segment that is open (decision 0066).",
    OnlineBeforeFlush: "A member is labelled online before its rebuild is durable (JN1).",
    CursorAhead: "The cursor in the labels is ahead of the rebuild (JN1).",
    ScrubNotFlushed: "The labels advance past repairs of a scrub that are not durable (SB1).",
    ReplacedKeepsIdentity: "A new device takes the identity of the member that it replaces (MB1).",
    DiscardNotAwaited: "A segment is allocated before its discard has ended (DH1).",
    PendingDiscarded: "Segments are discarded before the checkpoint that releases them (DH1).",
    ExpiredDiscardReleased: "A segment is allocated again though its discard has expired (DH1).",
    PinForgotten: "An empty segment is allocated while it is being rebuilt (G6).",
    ScrubTrustsBadRow: "A scrub rewrites the parity of a row with a block that does not verify.",
    OldSummaryTrusted: "A scrub uses summaries of an earlier incarnation of a segment.",
    GoneNotCounted: "After a member has left a stripe, the next member to leave is misnumbered.",
    UnreadTakenForLost: "The checker reports a block as lost that a mount can reconstruct.",
    StripeLostAsZeros: "Data that a stripe has lost with a member is read as zeros (R6).",
    StripeDoneWithout: "A stripe goes on without a member that has failed (R7).",
    LackingPoolWritten: "A pool with data missing is written by a read-only open (MJ6).",
    SpareBelieved: "The label of a spare is used as a label of the pool (MJ5).",
    LostPageIsUnused: "A scrub takes a lost metadata page for an unused one.",
    LaneOfOlderLabel: "A device joins a round-robin with an older label than its other members.",
    JournalNotCopied: "The journal moves to other devices without the content that recovery needs.",
    LostLabelledFirst:
        "The labels place a lost journal on the first disk group before it is rebuilt.",
    LostAcknowledged: "A write that the last device of the journal has failed is acknowledged.",
    LostHeadForgotten: "A lost journal is rebuilt with the head before the one being written.",
    MovedMainKeepsMap:
        "A member of a main disk group that is not at the front gets a partial rebuild.",
    MainBeforeFlush: "The labels name a new main disk group before its fixed regions are durable.",
    JournalNotWalked: "A replacement of a journal device does not get the journal.",
    FlushOfFirstGroupOnly: "A flush covers the first disk group alone (VG2).",
    PieceOfFixedRegionSkipped:
        "A rebuild of a mirror beside stripes skips the piece where the fixed regions end.",
    TakenOutWithLiveBlocks: "A disk group is removed before its last block is elsewhere (EV1).",
    TakenOutBeforeCheckpoint: "A disk group is removed while the log still refers to it (EV1).",
    ReshapeKeepsNothing:
        "A segment whose new place overlaps its old one moves without a copy (RP3).",
    ReshapeUnflushed: "The labels record segments as moved before these are durable (RP1).",
    ReshapeNotHeld: "A segment moves while a write to it is in flight (RP2).",
    LoneForgotten:
        "Writes through an old handle go to one device after the pool became a mirror (LN1).",
    BlankedBeforeLabels: "A detached member loses its label before the other labels omit it (AD3).",
    MissedNotMarked:
        "A write that an absent member misses is acknowledged without a stale mark (MS5).",
    FlushBesideFailureCounts:
        "A flush counts though another flush of the member in flight has failed (FL1).",
    UnreadNotMended: "A range that one member fails to read is not rewritten from another.",
    GrownOverReplaced:
        "A disk group grows past the end of a device that replaced a longer one meanwhile.",
    LogReadTooLate: "A member is labelled absent before the log of the others was read.",
    BegunNotEnded:
        "An open writes to members before an interrupted label update is complete (MJ10).",
    BegunEpochIsApart:
        "A member with an epoch that was only begun counts as another history (MJ10).",
    UnflushedNotMissed:
        "Writes that were not durable on a failed member are not marked stale (MS5).",
    MissedForgotten: "A member that fails during its rebuild loses its stale marks (RN2).",
    ReturningBelieved: "A returning member is read before its stale parts are rebuilt (MS4).",
    ReturnOfStranger: "A member that was written to outside the pool may return (RN1).",
    ReturnForgetsOwn: "A rebuild writes zeros where the returning member has the only copy (RN4).",
    UnreadIsEnd: "A part of the log that can't be read counts as its end.",
    ChunkBehindPieceUnseen:
        "Recovery does not look for whole chunks behind the end of the log (L3).",
    ReturnSavesStale: "A stale page of a returning member is restored, because it verifies (RN5).",
    ReturnSavesDead: "A freed block of a returning member is restored over newer contents (RN5).",
    InFlightNotMissed:
        "A member that returns during a write in flight is not marked stale there (MS5).",
    RecoveryTrustsAbsent: "Recovery leaves stripes in which an absent member may differ.",
    MoveTakesNewBirth: "A block that the cleaner moves gets a new birth (MV1).",
    MoveMissesAHolder: "A moved block is updated in the map of its first holder alone (MV2).",
    MoveTakesWhatLiesThereNow:
        "A move takes the present content of an old place for the block that it copied.",
    PageMoveMissesHolder: "A moved metadata page is updated in its first holder alone (PM2).",
    PageMoveRootKept: "A root in memory points to the old place of a moved metadata page (PM4).",
    HoleNotSent: "A stream does not contain a new hole of a file.",
    UnreadRecordSkipped: "A stream skips a record whose read failed once.",
    PartialShown: "An incomplete stream becomes visible (RV1).",
    ReceivedLinksNotVerified: "Received names are not compared with the received anodes (RV1).",
    EndedFilesetChanged: "A change that began before a restore goes to the replaced fileset (FK3).",
    ReceivedNotSynced: "The position of a stream is recorded before its records are durable (RV2).",
    MoveStaysUnasked:
        "A fileset that was moving is used again without a question to the target (FM3).",
    ArrivalForgottenEarly:
        "The target drops the mark of arrival before the source is deleted (FM4).",
    MoveMakesASecond: "A fileset moves to a pool that has it already (FM3).",
    MoveDropsLimits: "Limits of users are lost when their fileset moves (FM6).",
    SnapshotDeletedByName: "The deletion of a snapshot deletes a newer one of the same name.",
    DeletedSnapshotEntered:
        "A client with an open directory of a snapshot continues after its deletion (PO1).",
    ReadersNotWaitedFor: "A snapshot is freed while its pages are being read (PO1).",
    AheadNotDropped:
        "Data that was read ahead of a segment stays when the segment is rewritten (SC1).",
    DuplicateForgotten: "A request that is repeated after its reply is executed again (DR1).",
    DuplicateWithoutChecksum:
        "Requests with one number and length count as one, whatever their content.",
    AnsweredBeforeCommit: "A reply to an NFS client says durable before the commit.",
    UnreadMovedAsZeros:
        "A move of a segment without parity writes zeros for a part that it can't read.",
}

/// Whether a planted bug is enabled; constant false without the feature `planted`.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Planted::$bug)
    };
}

/// Executes a statement only while a planted bug is enabled: `if_planted!(Bug, statement);`.
#[macro_export]
macro_rules! if_planted {
    ($bug:ident, $wrong:expr) => {
        if $crate::planted!($bug) {
            $wrong;
        }
    };
}

/// Executes a statement unless a planted bug is enabled: `unless_planted!(Bug, statement);`.
#[macro_export]
macro_rules! unless_planted {
    ($bug:ident, $right:expr) => {
        if !$crate::planted!($bug) {
            $right;
        }
    };
}

/// Whether `bug` is enabled.
#[cfg(feature = "planted")]
#[expect(clippy::disallowed_methods, reason = "a process has one bug, which its parent names")]
#[must_use]
pub fn is(bug: Planted) -> bool {
    static AWAKE: std::sync::OnceLock<Option<Planted>> = std::sync::OnceLock::new();
    let awake = AWAKE.get_or_init(|| {
        let wanted = std::env::var("HOLDFAST_PLANTED").ok()?;
        let found = PLANTED.iter().find(|(_, name, _)| *name == wanted);
        Some(found.unwrap_or_else(|| panic!("no bug is called {wanted}")).0)
    });
    *awake == Some(bug)
}

/// Always false without the feature `planted`.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub const fn is(bug: Planted) -> bool {
    let _ = bug;
    false
}
