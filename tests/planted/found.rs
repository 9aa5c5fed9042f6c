//! What found each planted bug.

/// A bug, and the suite and the test that found it; both empty where none has yet.
pub(crate) type Row = (&'static str, &'static str, &'static str);

/// In the order of the bugs.
pub(crate) const FOUND: &[Row] = &[
    ("CommitWithoutFlush", "orders", "a_sync_ends_with_a_flush"),
    (
        "MemberBehindAcknowledged",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "SyncCompletedEarly",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("DataNotAwaited", "orders", "data_is_flushed_before_the_log_points_to_it"),
    ("DataNotFlushed", "orders", "data_is_flushed_before_the_log_points_to_it"),
    ("HomeBeforeLog", "orders", "pages_go_home_behind_the_log_and_before_the_head"),
    ("HeadBeforeHome", "orders", "pages_go_home_behind_the_log_and_before_the_head"),
    ("NewbornPagesLast", "orders", "new_pages_are_durable_before_what_points_to_them"),
    (
        "DoubleWriteSkipped",
        "orders",
        "pages_between_which_a_name_moved_go_through_the_double_write_area",
    ),
    ("LsnsNotListed", "fault", "stale::a_page_that_is_stale_is_told_and_destroys_nothing"),
    (
        "RecoveredLsnsNotListed",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("LsnNotCompared", "fault", "stale::a_page_that_is_stale_is_told_and_destroys_nothing"),
    (
        "TailPastDirtyPages",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "TailPastLogData",
        "engine",
        "journal::checkpoint::tests::the_tail_waits_for_log_data_that_no_segment_knows_of",
    ),
    (
        "UndoForgotten",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "MergeForgotten",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "ClassSplit",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "LogDataLost",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "ChunkChecksumNotCompared",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("RecoveryNotFlushed", "orders", "a_recovery_flushes_what_it_takes_home_before_its_head"),
    (
        "FreedSpaceUsedAtOnce",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("BitmapBitLeaked", "posix", "create::on_pool::every_new_inode_is_unlike_any_other"),
    (
        "OldBlockNotFreed",
        "posix",
        "truncate::on_pool::what_was_cut_off_reads_as_zeros_when_the_file_grows_again",
    ),
    ("DoubleFree", "posix", "orphan::on_pool::what_was_cut_off_an_orphan_never_comes_back"),
    ("ReserveForgotten", "full", "freeing::a_full_pool_can_always_be_emptied"),
    ("ReservationIgnored", "full", "ahead::what_is_taken_ahead_counts_until_it_is_given_up"),
    ("ReservationForgotten", "full", "ahead::what_was_taken_ahead_can_be_written_in_a_full_pool"),
    ("PreallocationKept", "full", "ahead::a_fallocate_that_fails_gives_back_what_it_had_reserved"),
    ("ReservationLeaked", "posix", "hole::on_pool::space_taken_ahead_reads_as_zeros_and_is_a_hole"),
    ("HeldRefused", "full", "ahead::what_was_taken_ahead_can_be_written_in_a_full_pool"),
    ("StatfsLies", "full", "promise::what_df_promises_can_be_written"),
    (
        "PageChecksumNotCompared",
        "fault",
        "damage::a_name_of_which_a_bit_turned_over_is_never_listed",
    ),
    ("DataChecksumNotCompared", "fault", "damage::rot_is_told_and_never_served"),
    ("DirtyPageEvicted", "full", "freeing::a_full_pool_can_always_be_emptied"),
    (
        "OrphanForgotten",
        "crash",
        "orphans::a_held_file_without_a_name_is_freed_by_the_open_after_a_crash",
    ),
    (
        "OrphansLeftAtOpen",
        "crash",
        "orphans::a_held_file_without_a_name_is_freed_by_the_open_after_a_crash",
    ),
    (
        "AnodeReusedEarly",
        "orders",
        "the_number_of_a_removed_file_comes_again_only_after_a_checkpoint",
    ),
    ("ReaddirSkipsSplitPage", "posix", "limits::on_pool::a_directory_holds_thousands_of_names"),
    ("CookieStale", "posix", "attr::on_pool::chmod_sets_twelve_bits_and_nothing_else"),
    ("JoinedPagesLoseNames", "posix", "limits::on_pool::a_directory_holds_thousands_of_names"),
    ("RenameLinkCount", "posix", "limits::on_pool::directories_lie_deep_in_one_another"),
    ("RenameLoop", "posix", "limits::on_pool::directories_lie_deep_in_one_another"),
    ("ExchangeLosesName", "posix", "rename::on_pool::exchange_swaps_two_names_of_any_kind"),
    ("CtimeMissed", "posix", "times::on_pool::names_set_ctime_of_what_they_name"),
    (
        "NonEmptyDirectoryRemoved",
        "posix",
        "rmdir::on_pool::rmdir_of_a_directory_with_names_is_refused",
    ),
    (
        "TailNotZeroed",
        "posix",
        "truncate::on_pool::what_was_cut_off_reads_as_zeros_when_the_file_grows_again",
    ),
    (
        "CutOffBytesInstalled",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    (
        "SizePastWrites",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("SetuidKept", "posix", "attr::on_pool::setting_owner_takes_setuid_and_setgid_away"),
    ("StickyIgnored", "posix", "permission::on_pool::the_sticky_bit_keeps_names_for_their_owners"),
    (
        "GroupNotInherited",
        "posix",
        "permission::on_pool::a_setgid_directory_gives_its_group_to_what_is_made_in_it",
    ),
    ("AclNotInherited", "posix", "acl::on_pool::a_default_list_is_handed_down"),
    ("DirectorySyncSkipped", "orders", "a_sync_of_a_directory_writes_the_log"),
    ("AgedNotCommitted", "orders", "what_is_old_enough_is_committed_by_itself"),
    ("CleanerIgnoresHoles", "full", "promise::what_df_promises_can_be_written"),
    ("InFlightNotSeen", "posix", "symlink::on_pool::targets_of_every_length_are_kept"),
    (
        "SealedBlockRewritten",
        "sim",
        "nothing_acknowledged_is_lost_and_what_survives_is_a_state_between_operations",
    ),
    ("DeletionCursorKept", "filesets", "a_deletion_gives_back_all_that_the_fileset_held"),
    ("SummaryLost", "full", "promise::what_df_promises_can_be_written"),
];
