//! Figures that processes count, as one table: name, unit, help, kind, scope, merge rule and words for users.
//!
//! A process counts into an array indexed by figure: [`ProcessFigures`], or [`FigureCells`] where several threads count.
//! Heartbeats carry the figures that changed, and the ApplicationMaster merges them by rule. The status, the page, the
//! report, `/metrics`, `--json` and docs/metrics.md are loops over the table. So a figure is a row here and the place that
//! counts it, which may be `PROCESS.add(ProcessFigure::…, 1)` anywhere in a process.
//!
//! Figures that follow from the job's state, such as its checkpoints, are not counted by a process: see the ApplicationMaster's
//! `api/metrics/table.rs`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Upper bounds of the classes of [`ProcessFigure::PullGaps`], ascending; one more class has all that is above.
pub const GAP_BOUNDS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// How the values of a figure behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by class, which these bounds end, ascending. The figure after it is the sum of the values.
    Histogram(&'static [u64]),
}

/// The unit of a figure in JSON. Metrics have seconds and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureUnit {
    /// A number of things.
    Number,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
}

/// Where a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureScope {
    /// Nowhere by itself: the ApplicationMaster computes with it.
    Process,
    /// With the slot of each process.
    Slot,
    /// With the job, merged over its processes.
    Job,
}

/// How the figures of several processes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeRule {
    /// Their sum. Processes that are lost count.
    Sum,
    /// The largest. Processes that are lost count.
    Max,
    /// The sum over the processes that are present.
    Present,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct FigureRow {
    /// The field of the JSON that it is in. Figures of a field follow each other.
    pub field: &'static str,
    /// Its name within the field; empty: the field is the number itself.
    pub key: &'static str,
    /// How its values behave.
    pub kind: FigureKind,
    /// Its unit.
    pub unit: FigureUnit,
    /// Where it is shown.
    pub scope: FigureScope,
    /// How the figures of several processes become one.
    pub merge: MergeRule,
    /// The name of its metric; empty if it is not a metric.
    pub metric: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Of a slot: the head of its column, empty if it is not shown. Of the job: its part of the field's line, which begins with
    /// the line's name and a colon. `{}` is the value, `{count}` the count of the field's histogram and `{mean}` the value divided
    /// by it. A part that begins with `?` is left out while the value is 0.
    pub text: &'static str,
}

macro_rules! process_figures {
    ($($(#[doc = $help:literal])+
        $name:ident(
            $field:literal, $key:literal, $kind:expr, $unit:ident, $scope:ident, $merge:ident
        )
        = $metric:literal, $text:literal;)+) => {
        /// A figure that processes count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ProcessFigure {
            $($(#[doc = $help])+ $name,)+
        }

        impl ProcessFigure {
            /// All of them, in the order of JSON and texts.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }

        const ROWS: &[FigureRow] = &[$(FigureRow {
            field: $field,
            key: $key,
            kind: $kind,
            unit: FigureUnit::$unit,
            scope: FigureScope::$scope,
            merge: MergeRule::$merge,
            metric: $metric,
            help: concat!($($help),+).trim_ascii(),
            text: $text,
        }),+];
    };
}

use FigureKind::{Counter, Gauge, Histogram};

process_figures! {
    /// Resident memory of a container, bytes.
    ResidentBytes("rss_bytes", "", Gauge, Bytes, Slot, Present)
        = "heddle_container_resident_bytes", "memory";
    /// Frames that a parameter server refused: of another epoch or term, or of a container that was replaced.
    FramesRefused("frames_refused", "", Counter, Number, Slot, Sum)
        = "heddle_frames_refused_total", "";
    /// Trainer: records computed, recomputed ones included.
    Rows("rows", "", Counter, Number, Process, Sum) = "", "";
    /// Trainer: records computed for evaluations; `rows` counts them too.
    EvaluatedRows("evaluated_rows", "", Counter, Number, Process, Sum) = "", "";
    /// Trainer: steps reached (acknowledged by every shard).
    Steps("steps", "", Counter, Number, Process, Sum) = "", "";
    /// Pserver: push frames applied or staged.
    Pushes("pushes", "", Counter, Number, Process, Sum) = "", "";
    /// SSP: the largest gap of a granted pull.
    PullGapMax("granted_pulls", "gap-max", Gauge, Number, Job, Max)
        = "heddle_pull_gap_max_steps", "staleness: largest gap {} steps";
    /// SSP: number of a granted pull minus the lowest clock, in this attempt.
    PullGaps("granted_pulls", "by-gap", Histogram(&GAP_BOUNDS), Number, Job, Sum)
        = "heddle_pull_gap_steps", "";
    /// SSP: sum of the gaps of granted pulls.
    PullGapSum("granted_pulls", "gap-sum", Counter, Number, Job, Sum) = "", ", mean {mean}";
    /// SSP: pulls that waited for clocks.
    PullsWaited("granted_pulls", "waited", Counter, Number, Job, Sum)
        = "heddle_pulls_waited_total", "; {} of {count} pulls waited";
    /// SSP: how long pulls waited for clocks, all of them together.
    PullWait("granted_pulls", "waited-us", Counter, Us, Job, Sum)
        = "heddle_pull_wait_seconds_total", ", {} in all";
    /// Bytes of shard files that the parameter servers of this attempt have written, also of checkpoints that were given up.
    SavedBytes("saved", "bytes", Counter, Bytes, Job, Sum)
        = "heddle_checkpoint_written_bytes_total", "saving: {} written";
    /// Time of the savers of all shards, also of those that save at the same time, seconds.
    SaverTime("saved", "saver-ms", Counter, Ms, Job, Sum)
        = "heddle_checkpoint_saver_seconds_total", ", {} of savers";
    /// Part of the savers' time that they waited for checkpoint.bandwidth, seconds.
    SaverThrottled("saved", "throttled-ms", Counter, Ms, Job, Sum)
        = "heddle_checkpoint_throttled_seconds_total", "?, {} of it for checkpoint.bandwidth";
    /// Records that trainers read from what they had kept, in this attempt.
    CachedRows("cache", "rows", Counter, Number, Job, Sum)
        = "heddle_cache_rows_total", "cache: {} records read from it";
    /// Bytes of decoded records that the trainers keep for later passes.
    CachedBytes("cache", "bytes", Gauge, Bytes, Job, Present)
        = "heddle_cache_bytes", "?, {} kept";
}

/// The first cell of each figure and, last, the number of cells. A histogram has a cell for each class.
const OFFSETS: [usize; ROWS.len() + 1] = {
    let mut offsets = [0; ROWS.len() + 1];
    let mut n = 0;
    while n < ROWS.len() {
        let cells = match ROWS[n].kind {
            Histogram(bounds) => bounds.len() + 1,
            Counter | Gauge => 1,
        };
        offsets[n + 1] = offsets[n] + cells;
        n += 1;
    }
    offsets
};
const CELLS: usize = OFFSETS[ROWS.len()];

impl ProcessFigure {
    /// Its row of the table.
    #[must_use]
    pub fn row(self) -> &'static FigureRow {
        &ROWS[self as usize]
    }

    /// The figures of each field of the JSON.
    pub fn fields() -> impl Iterator<Item = &'static [Self]> {
        Self::ALL.chunk_by(|one, next| one.row().field == next.row().field)
    }

    fn cells(self) -> std::ops::Range<usize> {
        OFFSETS[self as usize]..OFFSETS[self as usize + 1]
    }

    fn bit(self) -> u64 {
        1 << self as u32
    }
}

/// Values of figures: of a process, or of several merged. A figure that was not counted yet is not known and has the value 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFigures {
    cells: [u64; CELLS],
    /// A bit for each figure that is known.
    known: u64,
}

impl Default for ProcessFigures {
    fn default() -> Self {
        Self { cells: [0; CELLS], known: 0 }
    }
}

impl ProcessFigures {
    /// The value; of a histogram the count of all classes.
    #[must_use]
    pub fn get(&self, figure: ProcessFigure) -> u64 {
        self.classes(figure).iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The value, if it is known.
    #[must_use]
    pub fn known(&self, figure: ProcessFigure) -> Option<u64> {
        (self.known & figure.bit() != 0).then(|| self.get(figure))
    }

    /// The counts of a histogram by class, or the one value.
    #[must_use]
    pub fn classes(&self, figure: ProcessFigure) -> &[u64] {
        &self.cells[figure.cells()]
    }

    /// The sum of the values of a histogram that is known.
    #[must_use]
    pub fn histogram_sum(&self, histogram: ProcessFigure) -> Option<u64> {
        (self.known & histogram.bit() != 0).then(|| self.cells[histogram.cells().end])
    }

    /// Sets a value.
    pub fn set(&mut self, figure: ProcessFigure, value: u64) {
        self.cells[figure.cells().start] = value;
        self.known |= figure.bit();
    }

    /// Adds to a value.
    pub fn add(&mut self, figure: ProcessFigure, more: u64) {
        self.set(figure, self.get(figure).saturating_add(more));
    }

    /// Raises a value to at least this one.
    pub fn raise(&mut self, figure: ProcessFigure, value: u64) {
        self.set(figure, self.get(figure).max(value));
    }

    /// Counts a value in its class of a histogram, and adds it to the sum of the values.
    pub fn observe(&mut self, histogram: ProcessFigure, value: u64) {
        if let Histogram(bounds) = histogram.row().kind {
            let cells = histogram.cells();
            self.cells[cells.start + bounds.partition_point(|bound| *bound < value)] += 1;
            let sum = &mut self.cells[cells.end];
            *sum = sum.saturating_add(value);
            self.known |= histogram.bit() | (histogram.bit() << 1);
        }
    }

    /// Merges the figures of another process that is present.
    pub fn merge(&mut self, other: &Self) {
        self.merge_those(other, |_| true);
    }

    /// Merges the last figures of a process that is lost.
    pub fn merge_lost(&mut self, other: &Self) {
        self.merge_those(other, |rule| rule != MergeRule::Present);
    }

    fn merge_those(&mut self, other: &Self, merges: impl Fn(MergeRule) -> bool) {
        for figure in other.known_figures().filter(|figure| merges(figure.row().merge)) {
            for cell in figure.cells() {
                self.cells[cell] = match figure.row().merge {
                    MergeRule::Max => self.cells[cell].max(other.cells[cell]),
                    MergeRule::Sum | MergeRule::Present => {
                        self.cells[cell].saturating_add(other.cells[cell])
                    }
                };
            }
            self.known |= figure.bit();
        }
    }

    /// The figures of the fields that are not as they were in `before`.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> Self {
        let is_same = |figure: &ProcessFigure| {
            before.known(*figure) == self.known(*figure)
                && before.classes(*figure) == self.classes(*figure)
        };
        self.those(|field| !field.iter().all(is_same))
    }

    /// Takes in figures that changed.
    pub fn update(&mut self, changed: &Self) {
        for figure in changed.known_figures() {
            self.cells[figure.cells()].copy_from_slice(changed.classes(figure));
        }
        self.known |= changed.known;
    }

    /// The figures of a scope.
    #[must_use]
    pub fn of(&self, scope: FigureScope) -> Self {
        self.those(|field| field.iter().any(|figure| figure.row().scope == scope))
    }

    fn those(&self, wanted: impl Fn(&[ProcessFigure]) -> bool) -> Self {
        let mut those = *self;
        let left_out = ProcessFigure::fields().filter(|field| !wanted(field)).flatten();
        for figure in left_out {
            those.cells[figure.cells()].fill(0);
            those.known &= !figure.bit();
        }
        those
    }

    fn known_figures(&self) -> impl Iterator<Item = ProcessFigure> + '_ {
        ProcessFigure::ALL.iter().copied().filter(|figure| self.known & figure.bit() != 0)
    }

    fn json(&self, figure: ProcessFigure) -> Value {
        match figure.row().kind {
            Histogram(_) => self.classes(figure).into(),
            Counter | Gauge => self.get(figure).into(),
        }
    }

    fn read_json(&mut self, figure: ProcessFigure, value: &Value) {
        let counts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for (cell, count) in self.cells[figure.cells()].iter_mut().zip(counts) {
            *cell = count.as_u64().unwrap_or(0);
        }
        self.known |= figure.bit();
    }
}

impl FromIterator<(ProcessFigure, u64)> for ProcessFigures {
    fn from_iter<I: IntoIterator<Item = (ProcessFigure, u64)>>(values: I) -> Self {
        let mut figures = Self::default();
        values.into_iter().for_each(|(figure, value)| figures.set(figure, value));
        figures
    }
}

/// A map with the fields of which a figure is known.
impl Serialize for ProcessFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_known =
            |field: &&[ProcessFigure]| field.iter().any(|figure| self.known & figure.bit() != 0);
        serializer.collect_map(ProcessFigure::fields().filter(is_known).map(|field| {
            let values = field.iter().map(|figure| (figure.row().key, self.json(*figure)));
            let value = match field[0].row().key {
                "" => self.json(field[0]),
                _ => values.map(|(key, value)| (key.to_owned(), value)).collect(),
            };
            (field[0].row().field, value)
        }))
    }
}

/// Other fields are left out: another version of the program may have more.
impl<'de> Deserialize<'de> for ProcessFigures {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let mut figures = Self::default();
        for figure in ProcessFigure::ALL {
            let row = figure.row();
            let value = fields.get(row.field).and_then(|value| match row.key {
                "" => Some(value),
                key => value.get(key),
            });
            if let Some(value) = value {
                figures.read_json(*figure, value);
            }
        }
        Ok(figures)
    }
}

/// Figures that threads count together. Each value is written alone: readers may see values of different moments.
#[derive(Debug)]
pub struct FigureCells {
    cells: [AtomicU64; CELLS],
    known: AtomicU64,
}

/// What this process counts. The control thread adds it to each heartbeat.
pub static PROCESS: FigureCells = FigureCells::new();

impl FigureCells {
    /// Cells before the first count.
    #[must_use]
    pub const fn new() -> Self {
        Self { cells: [const { AtomicU64::new(0) }; CELLS], known: AtomicU64::new(0) }
    }

    /// Adds to a value.
    pub fn add(&self, figure: ProcessFigure, more: u64) {
        self.cells[figure.cells().start].fetch_add(more, Ordering::Relaxed);
        self.learn(figure.bit());
    }

    /// Replaces a value.
    pub fn set(&self, figure: ProcessFigure, value: u64) {
        self.cells[figure.cells().start].store(value, Ordering::Relaxed);
        self.learn(figure.bit());
    }

    /// Replaces all values that are known. One thread alone does so, often.
    pub fn store(&self, figures: &ProcessFigures) {
        for figure in figures.known_figures() {
            let cells = figure.cells();
            for (cell, value) in self.cells[cells.clone()].iter().zip(&figures.cells[cells]) {
                cell.store(*value, Ordering::Relaxed);
            }
        }
        self.learn(figures.known);
    }

    /// The values.
    pub fn read(&self) -> ProcessFigures {
        let known = self.known.load(Ordering::Relaxed);
        let cells = std::array::from_fn(|n| self.cells[n].load(Ordering::Relaxed));
        ProcessFigures { cells, known }
    }

    fn learn(&self, known: u64) {
        if self.known.load(Ordering::Relaxed) & known != known {
            self.known.fetch_or(known, Ordering::Relaxed);
        }
    }
}

impl Default for FigureCells {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessFigure::*;
    use super::*;

    fn pulls() -> ProcessFigures {
        let mut figures = ProcessFigures::default();
        for gap in [0, 1, 3, 4, 65] {
            figures.observe(PullGaps, gap);
            figures.raise(PullGapMax, gap);
        }
        figures.add(PullWait, 12);
        figures
    }

    #[test]
    fn histogram_counts_by_class_and_sums_values() {
        let pulls = pulls();
        assert_eq!(pulls.classes(PullGaps), [1, 1, 0, 2, 0, 0, 0, 0, 1]);
        assert_eq!(
            (pulls.get(PullGaps), pulls.get(PullGapSum), pulls.get(PullGapMax)),
            (5, 73, 65)
        );
        for (n, figure) in ProcessFigure::ALL.iter().enumerate() {
            if let Histogram(_) = figure.row().kind {
                let next = ProcessFigure::ALL[n + 1].row();
                assert_eq!((next.field, next.kind), (figure.row().field, Counter), "its sum");
            }
        }
    }

    #[test]
    fn rows_of_the_table_fit_together() {
        assert!(ProcessFigure::ALL.len() <= 64, "a bit for each");
        let mut fields: Vec<_> =
            ProcessFigure::fields().map(|field| field[0].row().field).collect();
        fields.sort_unstable();
        assert!(fields.windows(2).all(|two| two[0] != two[1]), "{fields:?}");
        for field in ProcessFigure::fields() {
            assert!(field.len() == 1 || field.iter().all(|figure| !figure.row().key.is_empty()));
            assert!(field.iter().all(|figure| figure.row().scope == field[0].row().scope));
        }
    }

    #[test]
    fn merge_rules_hold_for_present_and_lost_processes() {
        let mut one = pulls();
        one.set(ResidentBytes, 100);
        one.set(SavedBytes, u64::MAX);
        let mut all = one;
        all.merge(&one);
        assert_eq!((all.get(PullGaps), all.get(PullGapMax)), (10, 65));
        assert_eq!((all.get(ResidentBytes), all.get(SavedBytes)), (200, u64::MAX), "sums saturate");
        all.merge_lost(&one);
        assert_eq!((all.get(PullGaps), all.get(ResidentBytes)), (15, 200));
        assert_eq!(all.known(Rows), None);
    }

    #[test]
    fn a_receiver_of_changes_has_all_figures() {
        let (mut sent, mut received) = (ProcessFigures::default(), ProcessFigures::default());
        let mut now = pulls();
        for step in 0..3 {
            now.add(Rows, 10);
            if step == 1 {
                now.set(FramesRefused, 0);
            }
            let changed = now.changed_since(&sent);
            assert_eq!(changed.known(PullGaps).is_some(), step == 0, "once");
            received.update(&changed);
            sent = now;
            assert_eq!(received, now);
        }
        assert_eq!(now.changed_since(&sent), ProcessFigures::default());
    }

    #[test]
    fn json_has_a_field_for_each_group() {
        let mut figures = pulls();
        figures.set(Rows, 7);
        figures.set(SaverTime, 3);
        let json = serde_json::to_string(&figures).expect("JSON");
        let pulls =
            r#"{"by-gap":[1,1,0,2,0,0,0,0,1],"gap-max":65,"gap-sum":73,"waited":0,"waited-us":12}"#;
        let saved = r#"{"bytes":0,"saver-ms":3,"throttled-ms":0}"#;
        let expected = format!(r#"{{"rows":7,"granted_pulls":{pulls},"saved":{saved}}}"#);
        assert_eq!(json, expected);
        let read: ProcessFigures = serde_json::from_str(&json).expect("read");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), expected);
        assert_eq!(read.of(FigureScope::Job).known(Rows), None);
        let other = r#"{"later":{"a":[1]},"rows":"text"}"#;
        assert_eq!(serde_json::from_str::<ProcessFigures>(other).expect("read").get(Rows), 0);
    }

    #[test]
    fn cells_are_read_as_they_were_counted() {
        let cells = FigureCells::new();
        assert_eq!(cells.read(), ProcessFigures::default());
        cells.store(&pulls());
        cells.add(SavedBytes, 5);
        let mut expected = pulls();
        expected.set(SavedBytes, 5);
        assert_eq!(cells.read(), expected);
    }
}
