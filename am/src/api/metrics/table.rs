//! The metrics that follow from the job's view, and their samples. Those that processes count are in
//! [`heddle_protocol::process_figures`].

use std::collections::BTreeMap;
use std::fmt::Debug;

use heddle_protocol::ids::Role;
use heddle_protocol::process_figures::FigureKind;
use heddle_protocol::view::{
    DataLocality, JobState, JobView, MirrorView, RefillView, ReplicationView, SlotView,
    SpareCounts, SparseTableView, WarningCode,
};

use super::open_metrics::{MetricHead, MetricSamples};
use crate::report::format::{phases, word};
use crate::wall_clock::wall_ms;

/// A metric of the view.
pub(super) struct ViewMetric {
    pub(super) head: MetricHead,
    /// Adds its samples.
    pub(super) fill: fn(&JobView, &mut MetricSamples),
}

macro_rules! view_metrics {
    ($($kind:ident $name:literal $help:literal |$view:pat_param, $out:ident| $fill:expr;)+) => {
        /// All of them.
        pub(super) const METRICS: &[ViewMetric] = &[$(ViewMetric {
            head: MetricHead { name: $name, kind: FigureKind::$kind, help: $help },
            fill: |$view, $out| $fill,
        }),+];
    };
}

view_metrics! {
    Gauge "heddle_job_info" "Names of the job; always 1."
        |view, out| {
            let run = view.run.to_string();
            let application = view.application.as_ref().map_or("", |of| of.id.as_str());
            out.labelled(&[("job", &view.name), ("run", &run), ("application", application)], 1);
        };
    Gauge "heddle_build_info" "Version of the program; always 1."
        |_, out| out.labelled(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    Gauge "heddle_job_state" "1 for the state the job is in, 0 for the others."
        |view, out| {
            for state in STATES {
                out.labelled(&[("state", &word(&state))], u32::from(state == view.state));
            }
        };
    Gauge "heddle_job_start_time_seconds" "When the run was started, seconds since 1970."
        |view, out| out.value(seconds(view.started_ms));
    Gauge "heddle_am_attempt" "The attempt of the ApplicationMaster that answers."
        |view, out| out.value(view.attempt.0);
    Counter "heddle_rows_total" "Records computed, recomputed ones included."
        |view, out| out.value(view.rows);
    Gauge "heddle_rows_per_second" "Records per second at present."
        |view, out| out.value(view.rows_per_second);
    Gauge "heddle_tasks_set_aside"
        "Tasks that passes went on without after errors, the newest 1,000 at the most."
        |view, out| out.value(view.set_aside.len());
    Counter "heddle_straggler_tasks_stopped_total"
        "Tasks that a trainer stopped computing because another one had finished them."
        |view, out| some(out, view.stragglers.map(|late| late.stopped));
    Gauge "heddle_straggler_stop_seconds"
        "The longest time from the order to stop a late task until its trainer had stopped."
        |view, out| some(out, view.stragglers.map(|late| seconds(late.slowest_stop_ms)));
    Counter "heddle_bad_records_total" "Records left out as bad."
        |view, out| out.value(view.bad_records);
    Gauge "heddle_input_wait_seconds"
        "How long trainers have been waiting for the storage of their input; 0 while all of them read."
        |view, out| {
            let wait = view.storage_wait.as_ref().filter(|wait| wait.trainers > 0);
            out.value(seconds(wait.map_or(0, |wait| wall_ms().saturating_sub(wait.since_ms))));
        };
    Counter "heddle_input_waited_seconds_total"
        "Time in which trainers waited for the storage of their input, waits that are over."
        |view, out| out.value(seconds(view.history.storage_waited_ms));
    Gauge "heddle_credentials_expire_seconds"
        "Time until the job's HDFS tokens end; a job with a keytab gets others before."
        |view, out| {
            let left_ms = |until_ms: u64| until_ms.saturating_sub(wall_ms());
            some(out, view.credentials.as_ref().map(|tokens| seconds(left_ms(tokens.until_ms))));
        };
    Counter "heddle_credentials_failures_total"
        "Fetches of HDFS tokens by the job's keytab that failed in this attempt."
        |view, out| some(out, view.credentials.as_ref().map(|tokens| tokens.failures));
    Gauge "heddle_credentials_pending_containers"
        "Containers that have not confirmed the newest HDFS tokens."
        |view, out| some(out, view.credentials.as_ref().map(|tokens| tokens.pending_containers));
    Gauge "heddle_table_rows" "Rows of a sparse table."
        |view, out| each_table(view, out, |table| table.rows);
    Gauge "heddle_table_bytes"
        "Bytes of values, optimizer state, positions and index of a sparse table."
        |view, out| each_table(view, out, |table| table.bytes);
    Gauge "heddle_table_dropped_rows"
        "Pushed rows of a sparse table that found no room since the pservers loaded their shards."
        |view, out| each_table(view, out, |table| table.dropped);
    Gauge "heddle_training_loss" "Mean training loss of the present pass so far."
        |view, out| some(out, view.training_loss);
    Gauge "heddle_training_pass_loss" "Mean training loss of the last pass that is over."
        |view, out| some(out, view.passes.last().and_then(|trained| trained.loss));
    Gauge "heddle_training_passes" "Passes that are over."
        |view, out| out.value(view.passes.len());
    Gauge "heddle_phase_done_ratio" "Share of the phase that is done."
        |view, out| some(out, view.phase_done);
    Gauge "heddle_job_left_seconds" "Time to the end of the last pass at the present speed."
        |view, out| some(out, view.left_ms.map(seconds));
    Gauge "heddle_phase" "Ordinal of the phase."
        |view, out| out.value(view.phase.0);
    Gauge "heddle_phase_tasks" "Tasks of the phase."
        |view, out| out.value(view.tasks);
    Gauge "heddle_phase_tasks_done" "Tasks of the phase that are done."
        |view, out| out.value(view.tasks_done);
    Counter "heddle_checkpoints_total" "Checkpoints committed in this run."
        |view, out| out.value(view.checkpoints_taken);
    Counter "heddle_checkpoints_given_up_total" "Cuts that became no checkpoint in this attempt."
        |view, out| out.value(view.history.checkpoints_given_up_total);
    Gauge "heddle_mirror_behind_checkpoints"
        "Checkpoints that were committed and are not in this mirror."
        |view, out| each_mirror(view, out, |mirror| u64::from(mirror.behind));
    Gauge "heddle_mirror_late_seconds"
        "Time since the first of them was committed, seconds; 0 if there is none."
        |view, out| each_mirror(view, out, |mirror| seconds(mirror.late_ms));
    Counter "heddle_mirror_failures_total" "Copies to this mirror that failed in this attempt."
        |view, out| each_mirror(view, out, |mirror| mirror.failures);
    Gauge "heddle_checkpoint_last_time_seconds"
        "When the newest checkpoint was committed, seconds since 1970."
        |view, out| some(out, view.checkpoints.last().map(|newest| seconds(newest.at_ms)));
    Gauge "heddle_checkpoint_last_duration_seconds"
        "From the order to the commit of the newest checkpoint, seconds."
        |view, out| some(out, view.checkpoints.last().map(|newest| seconds(newest.took_ms)));
    Gauge "heddle_checkpoint_last_bytes" "Bytes of the newest checkpoint's shard files."
        |view, out| some(out, view.checkpoints.last().map(|newest| newest.bytes));
    Counter "heddle_tasks_dispatched_total"
        "Tasks dispatched in this attempt whose input is stored on known hosts, by locality."
        |view, out| {
            if let Some(DataLocality { node_local, rack_local, other }) = view.data_locality {
                for (locality, tasks) in
                    [("node_local", node_local), ("rack_local", rack_local), ("other", other)]
                {
                    out.labelled(&[("locality", locality)], tasks);
                }
            }
        };
    Counter "heddle_recoveries_total" "Recoveries in this run."
        |view, out| out.value(view.recoveries_total);
    Gauge "heddle_recovery_seconds" "Duration of each phase of the last recovery in seconds."
        |view, out| {
            for row in view.recoveries.last().into_iter().flat_map(|last| phases(last).rows()) {
                if let Some(ms) = row.ms {
                    out.labelled(&[("stretch", row.name)], seconds(ms));
                }
            }
        };
    Gauge "heddle_slots" "Slots by role and state."
        |view, out| {
            let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
            for slot in &view.slots {
                let key = (slot.slot.role.to_string(), word(&slot.state));
                *counts.entry(key).or_default() += 1;
            }
            for ((role, state), count) in &counts {
                out.labelled(&[("role", role), ("state", state)], count);
            }
        };
    Counter "heddle_containers_ended_total"
        "Containers that ended before the job did, in this attempt."
        |view, out| out.value(view.history.ended_total);
    Counter "heddle_warnings_total" "Warnings in this attempt, by code."
        |view, out| {
            // A series exists before its first warning, so that an increase is seen.
            let mut counts: BTreeMap<_, _> =
                WarningCode::ALL.iter().map(|code| (code, &0)).collect();
            counts.extend(&view.history.warnings_by_code);
            for (code, count) in counts {
                out.labelled(&[("code", code.name())], count);
            }
        };
    Gauge "heddle_container_incarnation" "Incarnation of the container in its slot."
        |view, out| each_slot(view, out, |slot| Some(slot.incarnation.0));
    Gauge "heddle_container_heartbeat_age_seconds"
        "Time since the last heartbeat of a container, seconds."
        |view, out| each_slot(view, out, |slot| slot.heartbeat_age_ms.map(seconds));
    Counter "heddle_pushes_total" "Push frames taken by a parameter server."
        |view, out| each_slot(view, out, |slot| total_of(slot, Role::Pserver));
    Counter "heddle_trainer_rows_total" "Records computed by a trainer's container."
        |view, out| each_slot(view, out, |slot| total_of(slot, Role::Trainer));
    Gauge "heddle_container_per_second"
        "Records (trainer) or push frames (parameter server) per second at present."
        |view, out| each_slot(view, out, |slot| Some(slot.per_second));
    Gauge "heddle_shards_in_sync" "Shards with all of their backups in sync."
        |view, out| replicated(view, out, |copies| u64::from(copies.in_sync));
    Gauge "heddle_shards_under_replicated" "Shards with fewer backups than wanted."
        |view, out| replicated(view, out, |copies| u64::from(copies.under_replicated));
    Counter "heddle_promotions_total" "Backups made primary."
        |view, out| replicated(view, out, |copies| copies.promotions);
    Counter "heddle_hand_overs_total" "Shards handed over."
        |view, out| replicated(view, out, |copies| copies.hand_overs);
    Counter "heddle_copies_differed_total"
        "Checkpoints given up because two copies of a shard had other bytes."
        |view, out| replicated(view, out, |copies| copies.copies_differed);
    Gauge "heddle_replication_lag_entries"
        "Changes that the slowest backup in sync has not acknowledged."
        |view, out| replicated(view, out, |copies| copies.lag.entries);
    Gauge "heddle_replication_lag_bytes"
        "Most bytes of changes that a primary keeps until its backups acknowledge them."
        |view, out| replicated(view, out, |copies| copies.lag.bytes);
    Gauge "heddle_replication_lag_seconds"
        "For how long the slowest backup in sync has owed an acknowledgement."
        |view, out| replicated(view, out, |copies| seconds(copies.lag.ms));
    Gauge "heddle_shards_served"
        "Shards that a parameter server serves, of a job whose shards can move."
        |view, out| {
            let served = view.replication.iter().flat_map(|copies| &copies.served);
            for (slot, shards) in served {
                out.labelled(&[("slot", &slot.to_string())], shards);
            }
        };
    Gauge "heddle_refills" "Backups of shards that are being brought up to date."
        |view, out| replicated(view, out, |copies| copies.refills.len());
    Gauge "heddle_refill_bytes" "Bytes that running refills have sent."
        |view, out| {
            let sent = |of: &RefillView| of.bytes;
            replicated(view, out, |copies| copies.refills.iter().map(sent).sum::<u64>())
        };
    Gauge "heddle_refill_left_bytes" "Bytes that running refills have to send."
        |view, out| {
            let left = |of: &RefillView| of.of_bytes.saturating_sub(of.bytes);
            replicated(view, out, |copies| copies.refills.iter().map(left).sum::<u64>())
        };
    Gauge "heddle_pservers_wanted"
        "Pservers that are to hold shards, of a job with pservers.min below pservers.max."
        |view, out| some(out, view.pservers.as_ref().map(|pservers| pservers.wanted));
    Gauge "heddle_pservers_present" "Pservers of such a job that are registered."
        |view, out| some(out, view.pservers.as_ref().map(|pservers| pservers.present));
    Gauge "heddle_pservers_departing" "Pservers that are to go and still hold shards."
        |view, out| some(out, view.pservers.as_ref().map(|pservers| pservers.departing.len()));
    Counter "heddle_updates_lost_total"
        "Updates of lost shards that local recoveries did not do again."
        |view, out| some(out, view.updates_lost);
    Gauge "heddle_spares"
        "Containers that are registered and idle, to take the place of lost ones, by role."
        |view, out| each_role_of_spares(view, out, |spares| spares.ready);
    Gauge "heddle_spares_wanted" "Spares that the job file asks for, by role."
        |view, out| each_role_of_spares(view, out, |spares| spares.wanted);
}

/// All states, so that a series exists before its state does.
const STATES: [JobState; 7] = [
    JobState::Starting,
    JobState::Running,
    JobState::Recovering,
    JobState::Finishing,
    JobState::Finished,
    JobState::Failed,
    JobState::Stopped,
];

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn some(out: &mut MetricSamples, value: Option<impl Debug>) {
    if let Some(value) = value {
        out.value(value);
    }
}

fn replicated<V: Debug>(
    view: &JobView,
    out: &mut MetricSamples,
    value: impl Fn(&ReplicationView) -> V,
) {
    some(out, view.replication.as_ref().map(value));
}

fn each_slot<V: Debug>(view: &JobView, out: &mut MetricSamples, value: fn(&SlotView) -> Option<V>) {
    for slot in &view.slots {
        if let Some(value) = value(slot) {
            out.labelled(&[("slot", &slot.slot.to_string())], value);
        }
    }
}

fn total_of(slot: &SlotView, role: Role) -> Option<u64> {
    (slot.slot.role == role).then_some(slot.total)
}

fn each_table(view: &JobView, out: &mut MetricSamples, value: fn(&SparseTableView) -> u64) {
    for table in &view.sparse_tables {
        out.labelled(&[("table", &table.name)], value(table));
    }
}

fn each_mirror<V: Debug>(view: &JobView, out: &mut MetricSamples, value: fn(&MirrorView) -> V) {
    for mirror in &view.mirrors {
        out.labelled(&[("mirror", &mirror.dir)], value(mirror));
    }
}

fn each_role_of_spares(view: &JobView, out: &mut MetricSamples, value: fn(SpareCounts) -> u32) {
    if let Some(spares) = view.spares {
        for (role, counts) in [("pserver", spares.pservers), ("trainer", spares.trainers)] {
            out.labelled(&[("role", role)], value(counts));
        }
    }
}
