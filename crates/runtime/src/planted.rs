//! Bugs planted on purpose, to see that the tests find them.
//!
//! A build with the feature `planted` has them all, asleep: the environment variable
//! `HOLDFAST_PLANTED` wakes one. Without the feature [`is`] is never true, and nothing of it is in
//! the program. `tests/planted` runs the suites against each; `docs/TESTING.md` has the table.

/// Makes the list of bugs: each with what it breaks.
macro_rules! bugs {
    ($($name:ident: $what:literal,)*) => {
        /// A bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Planted {
            $(#[doc = $what] $name,)*
        }

        /// Every bug, with its name and what it breaks.
        pub const PLANTED: &[(Planted, &str, &str)] =
            &[$((Planted::$name, stringify!($name), $what),)*];
    };
}

bugs! {
    CommitWithoutFlush: "A commit is acknowledged before the device has flushed the log (J1).",
    MemberBehindAcknowledged:
        "Whoever waits behind the writer of a group of commits is answered before it is written.",
    SyncCompletedEarly:
        "The callback of an async fsync runs as soon as the write of another has ended.",
    DataNotAwaited: "A commit does not wait for the data that it points to.",
    DataNotFlushed: "The data that a commit points to is written and not flushed.",
    HomeBeforeLog: "Pages go home before their records are durable (K1).",
    HeadBeforeHome: "The head that moves the tail is written before the pages are durable at home.",
    NewbornPagesLast:
        "Pages that nothing points to yet are not flushed before those that point to them (K2).",
    DoubleWriteSkipped:
        "Pages between which content moved go home without the double-write area (K2).",
    LsnsNotListed: "A checkpoint does not list the LSNs of the pages that it takes home (LP2).",
    RecoveredLsnsNotListed: "Recovery does not list the LSNs of the pages that it takes home.",
    RecoveryTakesFirstLsnPage:
        "Recovery lists LSNs in the LSN page of the first copy, not of the newest (CY1).",
    LsnNotCompared: "A page is used though another was the last to go home.",
    FirstCopyTaken:
        "Of copies of a page the first that verifies is believed, not the newest (CY1).",
    RebuiltFromStale: "A rebuild of a mirror copies an older page than another source has.",
    OlderCopyLeft: "A repair leaves copies of a page that verify, however old they are (CY2).",
    LsnAboveEndTaken: "A copy whose LSN is above the end of the log is believed (CY1).",
    TailPastDirtyPages: "The tail of the log moves past records of pages that are not home.",
    TailPastLogData: "The tail of the log moves past inline log data that is not in its segment.",
    UndoForgotten: "Recovery leaves the changes of classes without a commit.",
    MergeForgotten: "Recovery keeps a class and not those that became part of it.",
    ClassSplit: "A transaction that touches pages of two classes does not merge them (T1).",
    LogDataLost: "Recovery does not write inline log data to its place.",
    ChunkChecksumNotCompared: "A torn chunk of the log counts as whole.",
    RecoveryNotFlushed: "Recovery gives the log up before its pages are durable at home.",
    FreedSpaceUsedAtOnce: "Freed fragments are given out before the checkpoint (G2).",
    BitmapBitLeaked: "What is freed keeps its bits in the free map.",
    OldBlockNotFreed: "A block that is replaced is not freed (CT2).",
    DoubleFree: "A truncate frees what it freed already.",
    ReserveForgotten: "A user may write into what is kept for a full pool (G4).",
    ReservationIgnored: "What was taken ahead for one file is given to others (G4).",
    ReservationForgotten: "A block that is stored in part gives up the room for the rest of it.",
    PreallocationKept: "A fallocate that fails keeps what it had reserved (PA1).",
    ReservationLeaked: "The pool goes on counting what was reserved for a block (CT3).",
    HeldRefused: "A write of what a file holds already finds a full pool full (G5).",
    StatfsLies: "df counts free pages among metadata as room for data.",
    PageChecksumNotCompared: "A torn or rotten page of metadata is used.",
    DataChecksumNotCompared: "Rotten data is served.",
    DirtyPageEvicted: "The cache forgets a page whose changes are not home (U1).",
    OrphanForgotten: "A file that loses its last name is not entered in the orphan list (F2).",
    UnreadGroupStopsAll: "One allocation group that cannot be read keeps new data from all others.",
    UnreadStopsOpen: "A sector of a head, the double-write area or an LSN page must be readable.",
    OrphanKeepsPoolClosed: "A file without a name that cannot be freed keeps the pool closed.",
    EachCopyIsATry: "An operation is given up after copying so many pages, though it gets on.",
    LeafCopiedToEmpty: "A leaf that clones hold too is copied, only to be emptied and freed.",
    OrphansLeftAtOpen: "The open after a crash does not free files without a name.",
    AnodeReusedEarly: "A freed anode is used again before the checkpoint (F3).",
    ReaddirSkipsSplitPage: "A listing goes past the page that split off the one it has listed.",
    CookieStale: "A listing that goes on begins one name too late.",
    JoinedPagesLoseNames: "Two pages of a directory are joined without the names of one.",
    RenameLinkCount: "A directory that moves leaves the link counts of its parents as they were.",
    RenameLoop: "A directory may move below itself.",
    RenameReliesOnUndone:
        "A directory moves below another whose own move a crash may still undo.",
    ExchangeLosesName: "An exchange gives the second name to nobody new.",
    CtimeMissed: "A file that loses a name keeps its change time.",
    NonEmptyDirectoryRemoved: "A directory with names in it can be removed.",
    TailNotZeroed: "What lies behind the end of a file is seen when the file grows.",
    PunchSplitsWaiting: "A part of a block that waits is left of a range that is punched.",
    CutOffBytesInstalled:
        "Blocks behind the last one on disk are installed before its new version (V4).",
    SizePastWrites: "The size on disk is raised past the end of every write (V3).",
    SetuidKept: "A write by one without privilege leaves the setuid bit.",
    StickyIgnored: "Anybody may remove names of others from a sticky directory.",
    GroupNotInherited: "A setgid directory does not hand its group down.",
    AclNotInherited: "A directory does not hand its default access list down.",
    DirectorySyncSkipped: "An fsync of a directory does not commit what was made in it.",
    AgedNotCommitted: "What was not synced is never committed by itself.",
    AgedTwice: "What is put into the journal for its age gets old there once more.",
    CleanerIgnoresHoles:
        "The cleaner leaves a segment that gives back little, whatever was promised.",
    InFlightNotSeen: "A read of data on its way to the device asks the device.",
    SealedBlockRewritten: "A block that is on its way to the device changes (SG1).",
    DeletionCursorKept:
        "The walk that frees a deleted fileset frees again what it has freed (DL1).",
    GateNotHeldByWrites: "A write changes a file while its fileset is held still (GT2).",
    CloneLeavesBlocksWaiting: "A clone is taken before all that was accepted is in the maps.",
    CloneCommitsItsClassAlone: "A clone is answered while changes that it holds are not durable.",
    SharedPageEdited: "A page that a clone holds is changed in place (US1).",
    SharedBitSet: "A bitmap page that a clone holds is changed in place (US1).",
    SharedBlockFreed: "A block that a clone holds is freed when the fileset gives it up (US5).",
    OwnBlockKept: "A block that no clone holds stays in use when the fileset gives it up (US5).",
    SplitHintOutlivesCopy: "A lookup goes on to the page of a directory that a clone holds (US6).",
    CopyNotToldToFile: "A file in memory goes on with the map that a clone holds.",
    FoundPlaceKept: "A name is removed where its page was before the page was copied (US6).",
    DeletionForgetsParent:
        "The walk that frees a clone frees what the clone before it holds (DL3).",
    DeletionForgetsChild: "The walk that frees a clone frees what was kept after it (DL3).",
    EntryReliesOnUndone:
        "A clone is deleted by what the table says, which a crash may still undo (FT5).",
    DeletionComparesWholeBlocks:
        "The walk that frees a clone keeps a block of which a quarter is left elsewhere.",
    AcceptedNotCounted: "Writes that wait do not count against the quota (QT2).",
    ReferencedForgotten: "A cut file still counts in what its fileset references (F4).",
    CloneCountsNothing: "A clone forgets what it references (F4).",
    ChownMovesOneSide: "A file that is given to another counts for both (QC1).",
    CountedTwiceByScan:
        "What changes above the cursor of a count is counted, and by the scan again (QC1).",
    CountedUncommitted: "A count has what a crash may still undo (QC1).",
    WaitingOfUserNotCounted: "Writes that wait do not count against a user's limit (QA2).",
    LimitsBeforeAllCounted: "Limits of users hold before all is counted.",
    GraceOutlivesUse: "A grace goes on though all that was past the soft limit is gone (QA3).",
    WhiteoutNotAdmitted: "A rename leaves a whiteout past a user's limit of inodes.",
    ProjectsMixed: "A file moves into the directory of another project.",
    ProjectNotInherited: "What is made in a directory has no project, whatever that has.",
    ForkOwnsItsClone: "A fork changes in place what its clone holds (FK1).",
    RestoredFilesKept: "Files of a fileset stay in memory when it is restored.",
    HoldIgnored: "A clone that is held is deleted.",
    ReservingNotNoted: "A file reserves room, and its fileset does not say so (PA2).",
    ForkReservesNothing: "What a clone's files reserve is not counted for its forks.",
    SharedAfterDeletion: "A fileset goes on as if its deleted clone held what it had (US5).",
    OneCopyAcknowledged: "A write to a mirror is answered when its first copy is (MS1).",
    FailureNotLabelled: "A member fails, and no label tells of it (MS1).",
    JoiningMissesWrites: "A joining member does not get the writes of the pool (MS4).",
    AbsentNotLeftBehind: "A pool is changed while a member is away, and no label tells of it.",
    OlderCopyBelieved: "A member with a label older than all had is read as if it had all (MJ7).",
    LogsNotMadeEqual: "Recovery replays the log of one member and leaves those of others shorter.",
    LogGoesByItsOwnHead:
        "The member with the newest head decides how long the log is, whatever of it it has.",
    CopiedWithoutHold: "A piece is copied to a joining member while a write is at it (JN1).",
    WriteEndsWhenCollected:
        "A write that was answered is in flight until its caller collects the answer (RH1).",
    RepairWithoutHold: "A bad copy is written again while a write is at the range (RH1).",
    StripeNotPadded: "A flush leaves a stripe that the next one goes on with (decision 0065).",
    RotationWrong: "Parity of every row is written to the last member (SP2).",
    CopiesOnOneMember: "Both copies of a page lie on one member (SP3).",
    ParityForgotten: "A stripe is written with a parity of zeros (R5).",
    DegradedParityForgotten: "While a member is out a stripe is written without its parity (R6).",
    SecondCopyForgotten: "A page in a pool in stripes is written in one copy alone.",
    LogDataWithoutParity:
        "Recovery leaves a stripe as it is whose units are of two ages (decision 0065).",
    JoiningTakenForAway:
        "What recovery makes up of a row is written over what a member that joins has (RK3).",
    LogDataNotFirst:
        "Recovery puts a page together without what the log has of its row (RK1, decision 0065).",
    RebuildSkipsOpen: "A rebuild passes over a segment that is open (decision 0066).",
    RebuildForgetsParity: "A rebuild makes the data of a member anew and not its parity.",
    OnlineBeforeFlush: "A member is called online before what was made anew is durable (JN1).",
    CursorAhead: "The cursor in the labels is ahead of what was made anew (JN1).",
    ScrubNotFlushed: "The labels tell how far a scrub is before what it mended is durable (SB1).",
    ScrubAhead: "The labels say of a scrub that it has done more than it has (SB1).",
    ReplacedKeepsIdentity: "A new device takes the identity of the one whose place it takes (MB1).",
    RecoveryTrustsJoining: "Recovery leaves stripes that a joining member may have otherwise.",
    OneDiscardAwaited: "A discard of a mirror is answered when its first member has done it (DQ1).",
    DiscardNotAwaited: "A segment is given out before its discard is answered (DH1).",
    DiscardNotHeld: "A segment is not held from allocation while it is discarded (DH1).",
    PendingDiscarded: "Segments are discarded before the checkpoint that releases them (DH1).",
    OpenDiscarded: "A segment that is open and has nothing installed is discarded (DH1).",
    ExpiredDiscardReleased: "A segment is given out again though its discard has expired (DH1).",
    PinForgotten: "A segment that is being made anew is given to others when it is empty (G6).",
    UnwrittenIsLost: "A scrub tells of what it cannot write again as of what is lost.",
    ScrubTrustsBadRow: "A scrub makes parity match a row with a block that does not verify.",
    OldSummaryTrusted: "A scrub believes what summaries of an earlier life of a segment list.",
    TurnForgotten: "Blocks of a file go to whichever member of a round-robin has room (GR4).",
    MovedToFailed: "A segment is said to lie on a member that failed before any did.",
    GoneNotCounted: "The next member of a stripe to go is counted as if the last was there.",
    LaneLeavesUnsaid: "A device leaves a round-robin before the labels say so (DT2).",
    LaneGroupsForgotten: "A round-robin that leaves is all between its first number and its last.",
    PlacementNotInherited: "What is made in a directory does not take its placement (PC1).",
    FilesetPlacementForgotten: "A new fileset does not have the placement asked for (NR1).",
    MovesForgetPlacement: "What is moved goes to whichever disk group has room (GR5).",
    PlacementIsLimit: "A file that prefers a disk group has no room elsewhere (GR5).",
    BadSectorTakesRows: "A bad sector stands for the rows of a block that is put together.",
    SalvagedNotSuspected: "A member with a bad sector in a block is not suspected of rot in it.",
    UnreadTakenForLost: "A check takes a block for lost that a mount puts together.",
    OldParityRead: "Parity of the old row is read before a write (R5).",
    SuspectWholeOnly: "A part that may have rotted is rebuilt as a whole or not at all.",
    StripeLostAsZeros: "What a stripe has lost with a member is read as zeros (R6).",
    StripeDoneWithout: "A stripe goes on without a member that has failed (R7).",
    LackingPoolWritten: "A pool of which data is missing is written when it is looked at (MJ6).",
    BelowWithoutCopies: "A pool of which data is missing is read without its second copies.",
    SpareListedFirst: "Labels list a spare that has no label of its own yet (HS1).",
    SpareBelieved: "The label of a spare says what the pool is (MJ5).",
    SparesForgotten: "A label that is written for another reason lists the spares of before.",
    RemovedSpareKeepsLabel: "A spare that was removed still says that it is of the pool.",
    LargestSpareTaken: "The largest spare takes the place of a member, not the smallest.",
    OneSlotAskedForSpares: "Only the first slot whose member is away is looked at for a spare.",
    AddedBeforeAdding:
        "The labels call a disk group online before its members have one (growth.rs).",
    AddedBeforeLookedAt:
        "What must be known of a disk group is read once the labels say that it is there.",
    GrownNotLabelled: "A pool uses what its devices are longer before its labels say so.",
    GrownUnwiped: "What lies where descriptors of a pool that grows will be is left there.",
    OldEndLeft: "Copies of the superblock stay where a device ended before it was longer.",
    LostPageIsUnused: "A scrub takes a page of metadata that no device gives for one of nobody.",
    EarlierLifeBelieved:
        "A scrub takes old content for a page where no page is in use, or none is written back.",
    EachMendTold: "A scrub logs each block that it rewrites.",
    SpareHidesFailure: "The failure of a member is forgotten when a spare replaces it.",
    UncomparedNotCounted: "A scrub does not report what it verified by checksum only.",
    UnwrittenRowsMended: "A scrub corrects the parity of rows that nothing was written to.",
    MetadataKeepsIncarnation: "A segment that comes to hold pages keeps the epoch of its data.",
    LaneOfOlderLabel: "A device that comes to a round-robin has an older label than its others.",
    JournalNotCopied: "The journal moves to other devices without what a recovery needs of it.",
    LostLabelledFirst:
        "The labels say that a lost journal is on the first disk group before it is (anew.rs).",
    LostAcknowledged: "What the last device of the journal did not write is told to be durable.",
    LostLogCut: "Of a lost journal only what was not durable is written anew.",
    LostHeadForgotten: "A lost journal is made anew with the head before the one being written.",
    JournalWalkedForOthers: "The journal is made anew on members of the first disk group.",
    FixedRegionsNotCopied: "Another disk group becomes the main one without the fixed regions.",
    MovedMainKeepsMap: "A member of a main disk group that is not in front gets what a map says.",
    RootLeftBehind: "Another disk group becomes the main one without the root of the pool.",
    MainBeforeFlush: "Labels name a main disk group before it has the fixed regions durably.",
    JournalNotWalked: "A device that takes the place of one with the journal gets none of it.",
    FlushOfFirstGroupOnly: "A flush makes what lies in the first disk group durable alone (VG2).",
    RoleForgotten: "Data is put into a disk group that has no role for it (GR1).",
    MetadataRoomForgotten: "Writers are promised map pages for which there is no room (G7).",
    PieceOfFixedRegionSkipped:
        "A rebuild of a mirror beside stripes passes over the piece in which fixed regions end.",
    HolesNotSought: "Where little is free in any disk group the cleaner looks for no holes (G8).",
    FirstGroupNotCounted: "Promises count on holes of the first disk group for metadata (G8).",
    LeavingIsRoom: "A disk group that leaves counts as room for writers (GR3).",
    LeavingIsRoomAgain: "A disk group that leaves counts as room once another is added (GR3).",
    LeavingGetsSegments: "A segment is opened in a disk group that leaves (GR2).",
    TakenOutWithLiveBlocks: "A disk group is taken out before its last block is elsewhere (EV1).",
    TakenOutBeforeCheckpoint:
        "A disk group is taken out while the log still speaks of it (EV1).",
    SameSegmentsTried: "A disk group is emptied of the first segments that are left, each time.",
    BadBlockKeepsSegment: "A block that does not verify keeps those behind it where they are.",
    ReshapeKeepsNothing:
        "A segment whose new place meets its old one is not kept elsewhere while it moves (RP3).",
    ReshapeUnflushed: "The labels say that segments are moved before these are durable (RP1).",
    ReshapeKeptForgotten:
        "An open says that a segment which is kept elsewhere is moved, and does not move it (RP3).",
    ReshapeNotHeld: "Writers go on while a segment is moved (RP2).",
    AttachedReadAtOnce: "A member that is attached is read before it has all (AD1).",
    AttachedForgotten:
        "A label that is written for another reason has the disk groups' members of before.",
    LoneForgotten: "Who kept the one device of a pool writes to it alone when it has others (LN1).",
    BlankedBeforeLabels: "The label of a member goes before the others do without it (AD3).",
    MissedNotMarked: "A write is answered that a member misses, and no map says so (MS5).",
    FlushBesideFailureCounts:
        "A flush counts for a member though another that was in flight with it has failed (FL1).",
    UnreadNotMended: "What a member does not give, and another does, is not written to it again.",
    UnreadableKept: "A member stays however many reads it fails.",
    AddedLeftBehind:
        "A disk group whose device fails as labels say that it is there stays in the labels.",
    GrownOverReplaced:
        "A disk group becomes longer than a device that took the place of a longer one meanwhile.",
    BegunDecides: "A label that was only begun decides who is needed (MJ11).",
    LogReadTooLate: "A member is left behind before the log of the others was read.",
    BegunNotEnded: "An open writes to members before a label that was begun is ended (MJ10).",
    BegunEpochIsApart: "A member that only began an epoch is taken for another history (MJ10).",
    ForgottenIsApart: "A member that was away for long is taken for another history (MJ9).",
    UnflushedNotMissed:
        "A member that fails has missed nothing of what was not durable on it (MS5).",
    MissedForgotten: "A member that goes again while it comes back forgets what it missed (RN2).",
    ReturningBelieved: "A member that comes back is read before it has what it missed (MS4).",
    ReturnEndsEarly: "The last part that a member has missed is not made anew.",
    ReturnOfStranger: "A member comes back with writes of its own that the pool never saw (RN1).",
    AddedComesBackBlank:
        "What a member of an added disk group has when it returns counts as nothing (RN5).",
    ReturnForgetsOwn:
        "A member that comes back gets zeros where it alone has what was written (RN4).",
    RingReadWhole: "A bad sector in the log's ring stops the open, wherever it is (LU1).",
    UnreadIsEnd: "A part of the log that can't be read is taken for its end.",
    ChunkBehindPieceUnseen:
        "Where the log breaks off nobody looks behind the piece of the ring that was read.",
    SegmentReadWhole: "A bad sector that nobody needs stops the open after a crash.",
    ReturnNotAsked:
        "What has rotted elsewhere is not looked for on a member that comes back (RN5).",
    ReturnSavesStale:
        "A page of before is taken from a member that comes back, for it verifies (RN5).",
    ReturnSavesDead:
        "What nobody has is taken from a member that comes back, over what lies there now (RN5).",
    InFlightNotMissed: "A member comes back while a write is in flight without it (MS5).",
    RecoveryTrustsAbsent: "Recovery leaves stripes that a member which is away may have otherwise.",
    CloserWaitsWithLog:
        "Who waits for another closer of a gate keeps a part of the log reserved (GT4).",
    PromotionStopsAtFreed: "A promotion ends at a clone that is being freed.",
    MoveTakesNewBirth: "A block that the cleaner moves gets a new birth (MV1).",
    MoveMissesAHolder: "A block that is moved stays where it was for one who holds it (MV2).",
    MoveStopsAtFirstFork: "Of two who are below one clone, one is asked whether it holds a block.",
    MoveTakesWhatLiesThereNow: "A move takes what lies at the old place by now for what it copied.",
    MoveIgnoresCursor:
        "A move follows pointers of a deleted clone that its walk has left behind (MV2).",
    MoveFreesWholeBlock: "A move frees what of a block nobody has held any more (MV5).",
    MoveTakesNeighbour: "A move takes what lies behind a block for a part of it.",
    PageMoveTakesNewBirth: "A metadata page that is moved gets a new birth (PM1).",
    PageMoveMissesHolder: "One of those who hold a metadata page is not told that it moves (PM2).",
    PageMoveKeepsHint: "The hint of a directory page's sibling names the place before a move.",
    PageMoveRootKept: "A root in memory leads where a metadata page was before it moved (PM4).",
    MoveVnodeNotTold: "A file in memory reads a block where it was before it was moved (MV4).",
    DiffSkipsSubtree: "The diff of two nodes skips pages that both have differently (VD1).",
    DiffComparesWholeBlocks:
        "The diff of two nodes takes one block for another of its range (VD1).",
    RemovalNotSent: "A stream does not say what is gone.",
    HoleNotSent: "A stream does not say where a file has a hole now.",
    UnreadRecordSkipped: "A stream goes on behind a record that could not be read at once.",
    HardLinkLost: "A stream says that a file has one name.",
    GivenUpTwice: "What came of a stream is given up again while it is freed.",
    PartialShown: "A stream that broke off is shown (RV1).",
    PartialKept: "The fileset that received a stream stays behind (RV1).",
    ReceivedLinksNotVerified: "Names that were received are not held against anodes (RV1).",
    DamagedCloneKeepsClosed: "A deleted clone with a damaged page keeps its pool closed.",
    EndedFilesetChanged: "Who found a fileset before it was restored still changes it (FK3).",
    ReceivedAnotherFile: "A file that took another's number has its names (RV1).",
    ReceivedPagesApart: "Pages that were received are not held against each other (RV1).",
    ReceivedNotSynced: "What came is called there before it is durable (RV2).",
    MoveLeavesUnwritten: "A fileset arrives elsewhere, and nothing says that it leaves (FM2).",
    MoveStaysUnasked: "A fileset that leaves is used again, and the other pool is not asked (FM3).",
    ArrivalForgottenEarly:
        "One that has arrived forgets that before the other pool has deleted it (FM4).",
    MoveLeavesNameless:
        "A file that was removed and is open stays behind when its fileset moves (FM5).",
    MoveForgetsReferences: "A fileset that moves has no references of its fronts (FM5).",
    MoveStopsWhenBusy: "Requests are stopped for differences that take long (MU3).",
    MoveGoesBackLeaving: "A switch that is given up leaves its fileset leaving (MU2).",
    MoveMakesASecond: "A fileset moves to a pool that has it already (FM3).",
    MoveDropsReservation: "A fileset that moves has no reservation where it arrives (FM6).",
    MoveDropsLimits: "Limits of users stay behind when their fileset moves (FM6).",
    CloneDeletedByName: "A clone that was taken anew is deleted in place of one that was seen.",
    StreamHasNoReservation:
        "What receives a stream does not draw on the reservation of its fileset (QT5).",
    WeighingStopsEarly:
        "In a full pool the clones are named that reference most, not those that hold most.",
    WeighingKeepsWaiters: "Whoever waits for the weighing of clones waits for all parts of it.",
    DeletedCloneEntered: "Whoever has entered a clone goes on in it when it is deleted (PO1).",
    ReadersNotWaitedFor: "A clone is freed while somebody looks at its pages (PO1).",
    CloneSyncChanges:
        "A sync of a file in a clone begins a change, and whoever deletes the clone waits for it.",
    MainReferencesKept:
        "What a front has not given back of the main fileset stays until the pool is closed.",
    SummaryLost: "The last summary of a segment is not chained: the cleaner misses blocks.",
    CounterWaitsWithLog: "Who counts quotas waits at a gate with a part of the log reserved (GT4).",
    ShowWaitsWithLog: "What was received is shown by one who waits at a second gate (GT4).",
    NameNotAdmitted:
        "Pages of a directory that a link or a rename takes are held against no quota.",
    WritebackExempt: "What a kernel writes back is let in past limits, as of root.",
    GraceForgotten: "A grace is forgotten where a change with several of them is given up.",
    AheadNotDropped: "What was read ahead of a segment stays when it is written anew (SC1).",
    AheadNotMended: "What a member did not give is kept as it was read ahead, and never mended.",
    SummaryNotFromRow:
        "A summary that has rotted is not taken from its row, and what it lists rots with it.",
    RefusedCountsDown: "Who is refused a turn to read ahead counts one down that others began.",
    AheadNotWaitedFor: "Who asks for what is being read ahead reads it as well.",
    DuplicateForgotten: "A change that comes again after its answer is done again (DR1).",
    DuplicateDoneBeside: "A change that comes again while it is being done is done beside (DR1).",
    DuplicateWithoutChecksum: "Requests of one number and length are one, whatever they ask.",
    AnsweredBeforeCommit: "What a client of NFS is told to be durable is not yet.",
    CheckpointIsLoss: "A page that is being taken home is lost where it is not there yet (LC1).",
    MendedNotNamed: "A block that a read has mended is never named.",
    UnreadMovedAsZeros:
        "Of a stripe that is moved to other members, zeros are written where one was not read.",
    UnreadIsDamage: "A block that a member did not give is damage, as if it had been read.",
}

/// Whether `bug` is awake.
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

/// Whether `bug` is awake: never, in a program.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub const fn is(bug: Planted) -> bool {
    let _ = bug;
    false
}
