//! One contract for all engines, written from the semantics that Kubernetes asks of its storage: what a client of
//! the API may rely on for create, update, delete, list, paging and watch.

#![allow(clippy::unwrap_used)]

mod engines;
mod model;
mod reads;
mod replicas;
mod watches;
mod writes;

/// Runs every test of the contract on every engine: `memory::name`, `embedded::name`, `etcd::name`.
macro_rules! contract {
    ($($part:ident: $($name:ident)+;)+) => {
        contract!(@engine memory; $($part: $($name)+;)+);
        contract!(@engine embedded; $($part: $($name)+;)+);
        contract!(@engine etcd; $($part: $($name)+;)+);
    };
    (@engine $engine:ident; $($part:ident: $($name:ident)+;)+) => {
        mod $engine {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let Some(engine) = crate::engines::$engine().await else { return };
                    crate::$part::$name(engine.store.clone()).await;
                }
            )+)+
        }
    };
}

contract! {
    writes:
        a_created_key_reads_back_with_its_revision
        creating_a_key_that_exists_is_a_conflict_that_carries_it
        an_update_keeps_the_creation_and_moves_the_revision
        an_update_of_an_older_revision_is_a_conflict_that_carries_the_newer
        an_update_of_a_missing_key_is_a_conflict_with_nothing
        a_write_that_expects_anything_creates_and_replaces
        a_delete_has_its_own_revision_and_returns_the_last_record
        a_delete_of_another_revision_or_a_missing_key_is_a_conflict
        a_key_created_again_is_a_new_creation
        every_write_has_a_greater_revision_than_the_one_before
        concurrent_updates_of_one_key_lose_none
        only_one_of_many_concurrent_creations_succeeds
        volatile_writes_are_seen_at_once_and_in_order
        values_may_be_empty_large_and_not_text;
    reads:
        a_missing_key_reads_as_nothing
        a_range_is_ordered_and_stays_within_its_prefix
        an_empty_range_still_names_the_current_revision
        pages_of_one_revision_show_one_point_in_time
        a_page_says_how_many_records_remain
        a_continuation_starts_after_its_key_even_if_that_is_gone
        a_range_at_an_older_revision_shows_what_was_there_then
        a_range_at_a_revision_to_come_is_refused
        a_compacted_revision_is_refused_and_the_current_state_stays
        compaction_at_a_past_or_future_revision_is_harmless
        a_count_counts_what_exists
        a_backup_opens_as_an_embedded_store;
    watches:
        a_watcher_sees_creation_update_and_deletion_with_the_values_before
        a_watcher_from_a_list_sees_only_what_came_after
        a_watcher_from_an_older_revision_catches_up_without_a_gap
        a_watcher_sees_only_its_prefix
        a_watcher_from_a_compacted_revision_is_refused
        a_watcher_that_falls_out_of_the_history_is_told
        a_quiet_watcher_survives_compaction_of_what_others_wrote
        a_watcher_from_a_revision_to_come_waits_for_it
        progress_moves_on_when_nothing_under_the_prefix_changes
        many_watchers_share_each_event
        every_watcher_sees_every_concurrent_write_once_and_in_order
        closing_the_store_ends_watches_and_refuses_writes;
    model:
        any_sequence_of_calls_behaves_like_the_model;
}
