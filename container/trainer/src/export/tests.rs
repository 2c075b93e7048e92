//! Models from checkpoints that the storage layer has written, read back by the scorer.

use std::io::{Cursor, Write};
use std::ops::Range;

use bytes::Bytes;
use heddle_input::Labels;
use heddle_protocol::failure::ErrorClass;
use heddle_protocol::figure::Figure;
use heddle_protocol::ids::{
    CutId, Epoch, Generation, Incarnation, PhaseNo, RunId, SaveLease, ShardId, Slot, Step,
};
use heddle_protocol::job_spec::{AlgorithmKind, LabelScaling, shard_rows};
use heddle_protocol::manifest::{
    FORMAT_VERSION_WITH_FILES, InputPlan, Manifest, Md5, Progress, Salt, ShardFile, Work,
};
use heddle_protocol::model::{MODEL_FILE, ModelFile};
use heddle_storage::checkpoint::{CheckpointDir, CheckpointError};
use heddle_storage::shard_file::{Section, ShardHeader, ShardRows, ShardWriter, Table, Values};
use heddle_storage::{LocalStorage, Op, Reason, chain};
use uuid::Uuid;

use super::*;
use crate::predict::{
    PredictError, ScoreForm, Scored, ScoringModel, predict_files, predict_stream,
};
use crate::run::tests::sample;

const SHARDS: u32 = 3;

struct Rig {
    dir: tempfile::TempDir,
    checkpoint: StorageUrl,
}

impl Rig {
    fn path(&self, name: &str) -> StorageUrl {
        StorageUrl::parse(self.dir.path().join(name).to_str().expect("utf-8")).expect("a location")
    }
}

/// A checkpoint of `tables`: all values of each, in the order of the job's tables.
fn checkpoint(spec: &JobSpec, tables: &[Vec<f32>]) -> Rig {
    let dir = tempfile::tempdir().expect("a directory");
    let root = StorePath::parse(dir.path().join("ckpt").to_str().expect("utf-8")).expect("a path");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let checkpoint = runtime.block_on(async {
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage);
        let dir = CheckpointDir::open_or_create(Arc::clone(&storage), root).await.expect("made");
        let (cut, salt) =
            (CutId { generation: Generation(1), number: 4 }, Salt(Uuid::from_u128(7)));
        let staging = dir.stage(cut, salt).await.expect("made");
        let mut shards = Vec::new();
        for shard in (0..SHARDS).map(ShardId) {
            shards.push(write_shard(&*storage, &staging, shard, cut, spec, tables).await);
        }
        let manifest = Manifest {
            format_version: FORMAT_VERSION_WITH_FILES,
            run: RunId(Uuid::from_u128(1)),
            job: spec.name.clone(),
            cut,
            epoch: Epoch::first(Generation(1)),
            parent: None,
            salt,
            at_ms: 0,
            spec_digest: "0".repeat(64),
            spec: serde_json::to_value(spec).expect("JSON"),
            plan: InputPlan::default(),
            initial: false,
            shards,
            phase: PhaseNo(0),
            work: Work::Lanes { step: Step(0) },
            task_steps: Default::default(),
            evaluations: Vec::new(),
            best_pass: None,
            progress: Progress::default(),
            tables: Vec::new(),
        };
        let committed = dir.commit(manifest, salt, &|| Ok(())).await.expect("committed");
        StorageUrl::parse(committed.dir.as_str()).expect("a location")
    });
    Rig { dir, checkpoint }
}

async fn write_shard(
    storage: &dyn Storage,
    dir: &StorePath,
    shard: ShardId,
    cut: CutId,
    spec: &JobSpec,
    values: &[Vec<f32>],
) -> ShardFile {
    let tables = spec.tables();
    let rows: Vec<Range<u64>> =
        tables.iter().map(|table| shard_rows(table.rows, shard, SHARDS)).collect();
    let mut header = ShardHeader {
        run: RunId(Uuid::from_u128(1)),
        shard,
        shards: SHARDS,
        cut,
        epoch: Epoch::first(Generation(1)),
        phase: PhaseNo(0),
        step: Step(0),
        tables: Vec::new(),
        sections: Vec::new(),
    };
    for (table, rows) in tables.iter().zip(&rows) {
        let count = rows.end - rows.start;
        header.tables.push(Table {
            id: table.id,
            name: table.name.clone(),
            cols: table.cols,
            rows: ShardRows::Dense { first: rows.start, count },
            optimizer: "sgd".to_owned(),
        });
        for name in ["z", "values"] {
            header.sections.push(Section {
                table: Some(table.id),
                name: name.to_owned(),
                values: Values::F32,
                count: count * u64::from(table.cols),
            });
        }
    }
    let mut writer = ShardWriter::create(storage, dir, header).await.expect("made");
    for ((table, rows), values) in tables.iter().zip(&rows).zip(values) {
        let cols = table.cols as usize;
        let part = &values[rows.start as usize * cols..rows.end as usize * cols];
        let bytes = |values: Vec<f32>| -> Bytes {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        writer.write(bytes(vec![99.0; part.len()])).await.expect("written");
        writer.write(bytes(part.to_vec())).await.expect("written");
    }
    writer.finish(storage).await.expect("finished")
}

fn linear(standardise: bool) -> JobSpec {
    let mut spec = sample();
    spec.model.features = 5;
    spec.model.standardise = standardise;
    spec.data.index_base = 1;
    spec.pservers.shards = SHARDS;
    spec.training.lanes = 2;
    spec
}

fn scores(model: &ScoringModel, text: &str) -> Vec<f64> {
    let mut out = Vec::new();
    predict_stream(
        model,
        ScoreForm::PLAIN,
        Labels::Optional,
        Cursor::new(text.to_owned()),
        &mut out,
    )
    .expect("scored");
    String::from_utf8(out)
        .expect("text")
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect()
}

#[test]
fn both_formats_give_the_same_model_and_scores_follow_the_input() {
    let rig = checkpoint(&linear(false), &[vec![0.5, 0.0, -1.25, 1e-9, 3.0], vec![-0.5]]);
    let exported = export(
        &rig.checkpoint,
        &[ModelFormat::Safetensors, ModelFormat::Text],
        &rig.path("model"),
        0,
    );
    let names: Vec<String> =
        exported.expect("exported").files.into_iter().map(|file| file.name).collect();
    assert_eq!(names, [SAFETENSORS_FILE, TEXT_FILE]);
    let open = |name: &str| ScoringModel::open(&rig.path(name)).expect("a model");
    let model = open("model");
    assert_eq!(open("model/model.txt"), model);

    let sure = 1.0 / (1.0 + f64::exp(-2.5));
    let got = scores(&model, "1 5:1\n\n# none\n-1 1:1\r\n0 1:1 3:2");
    assert!((got[0] - sure).abs() < 1e-6 && got[1] == 0.5 && got.len() == 3, "{got:?}");

    // The same from files, compressed and not, in the given order.
    std::fs::write(rig.dir.path().join("b.libsvm"), "1 5:1\n").expect("written");
    let file = std::fs::File::create(rig.dir.path().join("a.libsvm.gz")).expect("made");
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed.write_all(b"0 1:1").expect("packed");
    packed.finish().expect("packed");
    let mut out = Vec::new();
    let inputs = [rig.path("b.libsvm"), rig.path("*.gz")];
    let scored = predict_files(&model, ScoreForm::PLAIN, Labels::Optional, &inputs, &mut out)
        .expect("scored");
    assert_eq!(scored.rows, 2);
    let figures = scored.figures.expect("both records have labels");
    let log_loss = ((1.0 + f64::exp(-2.5)).ln() + f64::ln(2.0)) / 2.0;
    let got = figures.get(Figure::LogLoss).expect("a log-loss");
    assert!((got - log_loss).abs() < 1e-6, "{figures:?}");
    assert_eq!(figures.get(Figure::Auc), Some(1.0));
    assert_eq!(String::from_utf8(out).expect("text"), format!("{}\n0.5\n", sure as f32));
}

fn scored(model: &ScoringModel, input: &[u8]) -> Result<(String, Scored), PredictError> {
    let mut out = Vec::new();
    let scored = predict_stream(
        model,
        ScoreForm::PLAIN,
        Labels::Optional,
        Cursor::new(input.to_vec()),
        &mut out,
    )?;
    Ok((String::from_utf8(out).expect("text"), scored))
}

#[test]
fn records_without_labels_and_compressed_streams_are_scored() {
    let text = "# heddle linear model, version 1: score = …\nmodel logistic-regression\n\
        format libsvm\n\
        index-base 1\nfeatures 3\n1 0.5\n3 -1e-3\nbias 0.25\n";
    let model = ScoringModel::from_bytes(&Bytes::from_static(text.as_bytes())).expect("a model");
    let (with, quality) = scored(&model, b"1 1:2\n0 3:1\n").expect("scored");
    assert!(quality.figures.is_some());
    let (minus, same) = scored(&model, b"+1 1:2\n-1 3:1\n").expect("scored");
    assert_eq!((&minus, &same), (&with, &quality));
    for unlabelled in
        ["1:2\n3:1\n", "? 1:2\n? 3:1", "1 1:2\n3:1\n", "7 1:2\n-3 3:1\n", "-1 1:2\n0 3:1\n"]
    {
        let (out, scored) = scored(&model, unlabelled.as_bytes()).expect("scored");
        assert_eq!((&out, scored.rows), (&with, 2), "{unlabelled:?}");
        assert_eq!(scored.figures, None, "{unlabelled:?}");
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"1 1:2\n0 3:1\n").expect("packed");
    let packed = packed.finish().expect("packed");
    assert_eq!(scored(&model, &packed).expect("scored"), (with, quality));
    let error = chain(&scored(&model, b"BZh91AY&SY").expect_err("cut"));
    assert!(error.contains("not a sound bzip2 file"), "{error}");
    let error = chain(&scored(&model, b"PAR1").expect_err("no text"));
    assert!(error.contains("a Parquet file"), "{error}");
}

#[test]
fn a_standardised_model_is_written_for_raw_values() {
    let (weights, bias) = (vec![1.0, -2.0, 0.5, 4.0, 0.25], 0.75);
    // Mean 2, variance 4 in all columns but the last, which is constant: 10 records.
    let mut stats: Vec<f32> = [20.0, 10.0, 40.0].repeat(4);
    stats.extend([0.0, 0.0, 0.0, 0.0, 10.0, 0.0]);
    let rig = checkpoint(&linear(true), &[weights.clone(), vec![bias], stats]);
    export(&rig.checkpoint, &[], &rig.path("model"), 0).expect("exported");
    let model = ScoringModel::open(&rig.path("model")).expect("a model");
    let x = [3.0f64, 0.0, 5.0, 1.0, 7.0];
    let mut score = f64::from(bias);
    for (feature, x) in x.iter().enumerate() {
        let (mean, scale) = if feature < 4 { (2.0, 2.0) } else { (0.0, 1.0) };
        score += f64::from(weights[feature]) * (x - mean) / scale;
    }
    let got = scores(&model, "1 1:3 3:5 4:1 5:7\n");
    assert!((got[0] - 1.0 / (1.0 + f64::exp(-score))).abs() < 1e-6, "{got:?}");
}

#[test]
fn values_that_are_not_finite_are_refused_by_table_and_row() {
    let far = LabelScaling::By(LabelScale { mean: 0.0, deviation: 1e30 });
    let weights = vec![1.0, 2.0, 3.0, 4.0, 1e30];
    let with = |place: usize, value: f32| {
        let mut weights = weights.clone();
        weights[place] = value;
        weights
    };
    for (tables, scaling, place) in [
        (
            [with(3, f32::INFINITY), vec![0.0]],
            LabelScaling::Off,
            "row 3 of table weights holds inf",
        ),
        ([weights.clone(), vec![f32::NAN]], LabelScaling::Off, "row 0 of table bias holds NaN"),
        ([weights.clone(), vec![0.0]], far, "row 4 of table weights holds inf"),
    ] {
        let mut spec = linear(false);
        spec.model.algorithm = AlgorithmKind::LinearRegression;
        spec.model.scale_labels = scaling;
        let rig = checkpoint(&spec, &tables);
        for formats in [&[][..], &[ModelFormat::Text]] {
            let error = export(&rig.checkpoint, formats, &rig.path("model"), 0);
            let error = error.expect_err("diverged");
            assert_eq!(error.class(), ErrorClass::Training, "{error}");
            assert!(error.to_string().starts_with(place), "{error}");
            let left = std::fs::read_dir(rig.dir.path().join("model"));
            assert_eq!(left.map_or(0, Iterator::count), 0, "no file is left");
        }
    }
}

#[test]
fn a_trainer_exports_to_a_hidden_directory_of_its_own() {
    let spec = linear(false);
    let rig = checkpoint(&spec, &[vec![1.0; 5], vec![0.0]]);
    let member = Member { slot: Slot::trainer(3), incarnation: Incarnation(2) };
    let (from, to) = (rig.checkpoint.to_string(), rig.path("model").to_string());
    let order = |save, count| ExportOrder {
        save: SaveNo(save),
        lease: SaveLease { generation: Generation(1), count },
        checkpoint: from.clone(),
        dir: to.clone(),
    };
    let bytes = ExportedBytes::default();
    let first = export_for(&spec, member, &order(0, 1), &bytes).expect("exported");
    let read = bytes.count();
    assert!(read > 0, "its lease is renewed by this");
    let second = export_for(&spec, member, &order(0, 2), &bytes).expect("exported again");
    assert_eq!(bytes.count(), 2 * read);
    // A save during training is a directory of its own.
    let save = export_for(&spec, member, &order(4, 3), &bytes).expect("saved");
    assert_eq!((save.dir.as_str(), &save.files), ("trainer-3.2", &first.files));
    assert!(rig.dir.path().join("model/save-4/trainer-3.2").join(SAFETENSORS_FILE).exists());
    let again = export_for(&spec, member, &order(4, 4), &bytes).expect("saved again");
    assert_eq!(again.dir, "trainer-3.2-2");
    let prefix = staging_prefix(&rig.path("ckpt").to_string());
    assert_eq!(
        (first.dir, second.dir),
        (format!("{prefix}trainer-3.2"), format!("{prefix}trainer-3.2-2"))
    );
    assert_eq!(first.files, second.files);
    let _: Md5 = first.files[0].md5.parse().expect("a sum");
    assert!(ScoringModel::open(&rig.path("model")).is_err(), "nothing is published yet");
}

#[test]
fn an_export_has_the_layout_of_a_published_model() {
    use std::os::unix::fs::PermissionsExt;

    let rig = checkpoint(&linear(false), &[vec![1.0; 5], vec![0.0]]);
    let exported = export(&rig.checkpoint, &[], &rig.path("model"), 7).expect("exported");
    let dir = rig.dir.path().join("model");
    let json = std::fs::read(dir.join(MODEL_FILE)).expect("written");
    let model = ModelFile::from_json(&json).expect("a model file");
    assert_eq!((model.dir.as_str(), model.at_ms), ("", 7));
    assert_eq!(model.files, exported.files);
    for file in &model.files {
        assert!(dir.join(&file.name).exists(), "{file:?}");
        // The default of the umask, which depends on the machine.
        let own = std::fs::write(dir.join("own"), "x").and_then(|()| dir.join("own").metadata());
        let mode = dir.join(&file.name).metadata().expect("is there");
        assert_eq!(mode.permissions().mode(), own.expect("written").permissions().mode());
    }
    ScoringModel::open(&rig.path("model")).expect("a model");
}

#[test]
fn a_model_of_an_early_version_is_found_in_its_subdirectory() {
    let rig = checkpoint(&linear(false), &[vec![1.0; 5], vec![0.0]]);
    let below = rig.path("model/trainer-0.1");
    let exported = export(&rig.checkpoint, &[], &below, 0).expect("exported");
    let model = ModelFile {
        format_version: 1,
        run: RunId(Uuid::from_u128(1)),
        job: "early".to_owned(),
        checkpoint: CutId::default(),
        dir: "trainer-0.1".to_owned(),
        files: exported.files,
        at_ms: 0,
    };
    let json = serde_json::to_vec(&model).expect("JSON");
    std::fs::write(rig.dir.path().join("model").join(MODEL_FILE), json).expect("written");
    ScoringModel::open(&rig.path("model")).expect("a model");
}

#[test]
fn a_damaged_checkpoint_and_a_full_directory_are_rejected() {
    let rig = checkpoint(&linear(false), &[vec![1.0; 5], vec![0.0]]);
    std::fs::create_dir(rig.dir.path().join("full")).expect("made");
    std::fs::write(rig.dir.path().join("full/other"), "x").expect("written");
    assert!(matches!(
        export(&rig.checkpoint, &[], &rig.path("full"), 0),
        Err(ExportError::Exists(_))
    ));

    let dir = std::path::Path::new(rig.checkpoint.path().as_str());
    let shard = std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("listed").path());
    let shard = shard
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "ckpt"))
        .expect("a shard");
    let mut bytes = std::fs::read(&shard).expect("read");
    let last = bytes.len() - 70;
    bytes[last] ^= 1;
    std::fs::write(&shard, bytes).expect("written");
    let error = export(&rig.checkpoint, &[], &rig.path("model"), 0).expect_err("damaged");
    assert!(matches!(error, ExportError::Checkpoint(ref error) if error.is_damage()), "{error:?}");
}

#[test]
fn export_of_a_checkpoint_that_goes_leaves_the_folder_empty() {
    let rig = checkpoint(&linear(false), &[vec![1.0; 5], vec![0.0]]);
    let model = rig.dir.path().join("model");
    std::fs::create_dir(&model).expect("made");
    let out = StorePath::parse(model.to_str().expect("UTF-8")).expect("a path");
    let gone = wait(async {
        let (from, opened) = StoredCheckpoint::readable(&rig.checkpoint).await?;
        std::fs::remove_dir_all(rig.checkpoint.path().as_str()).expect("removed");
        let (storage, bytes) = (LocalStorage, ExportedBytes::default());
        let formats = [ModelFormat::Safetensors, ModelFormat::Text];
        let mode = storage.default_mode();
        let written = export_into(from, opened, &formats, &bytes, &storage, mode, &out).await;
        assert!(std::fs::read_dir(&model).expect("listed").count() > 0);
        or_empty(written, &storage, &out).await
    });
    assert!(gone.is_err_and(|error| error.is_removed() && error.class() == ErrorClass::Input));
    assert_eq!(std::fs::read_dir(&model).expect("listed").count(), 0, "it is as it was");
    let gone = export(&rig.checkpoint, &[], &rig.path("model"), 0).expect_err("gone");
    assert!(gone.is_removed(), "{gone:?}");
}

#[test]
fn an_export_without_rights_or_room_is_denied() {
    for (reason, refused) in [
        (Reason::Full, true),
        (Reason::Quota("disk quota".to_owned()), true),
        (Reason::Denied, true),
        (Reason::Unavailable, false),
        (Reason::Other, false),
    ] {
        let failed = || StorageError::new(Op::Write, "/out/model", reason.clone());
        assert_eq!(ExportError::Storage(failed()).class() == ErrorClass::Denied, refused);
        let of_checkpoint = ExportError::Checkpoint(CheckpointError::Storage(failed()));
        assert_eq!(of_checkpoint.class() == ErrorClass::Denied, refused);
    }
    assert_eq!(ExportError::Text.class(), ErrorClass::Input);
    let other = StorageError::new(Op::Write, "/out/model", Reason::Other);
    assert_eq!(ExportError::Storage(other).class(), ErrorClass::Internal, "another tries");
}

#[test]
fn a_file_that_is_not_a_model_is_rejected() {
    let rig = checkpoint(&linear(false), &[vec![1.0; 5], vec![0.0]]);
    export(&rig.checkpoint, &[ModelFormat::Safetensors, ModelFormat::Text], &rig.path("model"), 0)
        .expect("exported");
    for name in [SAFETENSORS_FILE, TEXT_FILE] {
        let whole = std::fs::read(rig.dir.path().join("model").join(name)).expect("read");
        assert!(ScoringModel::from_bytes(&Bytes::from(whole.clone())).is_ok());
        for end in 0..whole.len() {
            let cut = Bytes::copy_from_slice(&whole[..end]);
            assert!(ScoringModel::from_bytes(&cut).is_err(), "{name} cut to {end} bytes was taken");
        }
    }
    let lying = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert!(ScoringModel::from_bytes(&Bytes::from(lying)).is_err());
    let error = ScoringModel::open(&rig.path("ckpt")).expect_err("no model in it");
    assert!(error.to_string().contains("holds no MODEL.json"), "{error}");
}
