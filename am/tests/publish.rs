//! Publication of a model over a storage that fails or stops at any call.
//!
//! A reader opens `model.safetensors` at any time: it must find one whole model or none. After any interruption the next
//! attempt publishes, and exactly one model is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use heddle_am::publish::{Publication, PublishError};
use heddle_protocol::control::ExportedFile;
use heddle_protocol::ids::{Attempt, CutId, Generation, RunId};
use heddle_protocol::manifest::Salt;
use heddle_protocol::model::{MODEL_FILE, ModelFile, staging_prefix};
use heddle_storage::checkpoint::{CheckpointDir, ClaimRecord, Owner};
use heddle_storage::testing::{Faults, Faulty, InjectedFault, MemoryStorage};
use heddle_storage::{
    EntryKind, Mode, Storage, StorePath, SummedWriter, make_dirs, read_small, write_whole,
};
use uuid::Uuid;

const NAMES: [&str; 2] = ["model.safetensors", "model.txt"];

fn path(text: &str) -> StorePath {
    StorePath::parse(text).expect("absolute")
}

fn cut(generation: u32, number: u32) -> CutId {
    CutId { generation: Generation(generation), number }
}

/// Which model: its run and what its files hold.
#[derive(Clone, Copy)]
struct Which {
    run: u128,
    cut: (u32, u32),
    content: &'static str,
    names: &'static [&'static str],
}

const OLD: Which = Which { run: 1, cut: (1, 9), content: "the old model", names: &NAMES };
const NEW: Which =
    Which { run: 2, cut: (1, 4), content: "the new and longer model", names: &NAMES };

struct Rig {
    memory: MemoryStorage,
    checkpoints: CheckpointDir,
}

impl Rig {
    /// An output directory, and a checkpoint directory that generation 1 has claimed.
    async fn new() -> Self {
        let memory = MemoryStorage::new();
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        storage.mkdir(&path("/out"), Mode::DIR).await.expect("made");
        let checkpoints =
            CheckpointDir::open_or_create(storage, path("/ckpt")).await.expect("opened");
        let rig = Self { memory, checkpoints };
        rig.claim(1).await;
        rig
    }

    async fn claim(&self, generation: u32) {
        let record = ClaimRecord {
            format_version: 1,
            generation: Generation(generation),
            run: RunId(Uuid::from_u128(1)),
            owner: Owner::Application {
                application: "application_1_1".to_owned(),
                attempt: Attempt(generation),
            },
            base: None,
            salt: Salt(Uuid::from_u128(u128::from(generation))),
            at_ms: 0,
        };
        assert!(self.checkpoints.write_claim(&record).await.expect("claimed"));
    }

    /// Exports as a trainer does; the directory's name and the files.
    async fn export(&self, which: Which, trainer: u32) -> (String, Vec<ExportedFile>) {
        let staged = format!("{}trainer-{trainer}.1", staging_prefix("/ckpt"));
        let dir = path("/out").join(&staged).expect("a name");
        self.memory.mkdir(&dir, Mode::DIR).await.expect("made");
        let mut files = Vec::new();
        for name in which.names {
            let at = dir.join(name).expect("a name");
            let mut writer = SummedWriter::create_sized(&self.memory, &at, Mode::FILE, 0)
                .await
                .expect("created");
            let content = Bytes::from(format!("{} as {name}", which.content));
            writer.write(content).await.expect("written");
            let summed = writer.finish(&self.memory).await.expect("finished");
            files.push(ExportedFile {
                name: summed.name,
                bytes: summed.bytes,
                md5: summed.md5.to_string(),
            });
        }
        (staged, files)
    }

    async fn publish(
        &self,
        which: Which,
        exported: &(String, Vec<ExportedFile>),
        overwrite: bool,
        faults: Arc<Faults>,
    ) -> Result<(), PublishError> {
        let storage = Faulty::over(Arc::new(self.memory.clone()), faults);
        let (staged, files) = exported;
        let publication = Publication {
            storage: &*storage,
            dir: &path("/out"),
            staged,
            staging_prefix: &staging_prefix("/ckpt"),
            mode: Mode::FILE,
            overwrite,
            salt: Salt(Uuid::from_u128(5)),
            checkpoints: &self.checkpoints,
            generation: Generation(1),
            lease: &|| Ok(()),
        };
        publication
            .publish(ModelFile {
                format_version: 1,
                run: RunId(Uuid::from_u128(which.run)),
                job: "test".to_owned(),
                checkpoint: cut(which.cut.0, which.cut.1),
                dir: String::new(),
                files: files.clone(),
                at_ms: 0,
            })
            .await
    }

    /// Exports and publishes without a fault.
    async fn put(&self, which: Which, overwrite: bool) {
        let exported = self.export(which, 0).await;
        self.publish(which, &exported, overwrite, Faults::none()).await.expect("published");
    }

    /// Files and directories of the output by name, with the content of files.
    async fn found(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for entry in self.memory.list(&path("/out")).await.expect("listed") {
            let content = read_small(&self.memory, &entry.path, 1 << 20).await;
            let text = content.map_or("a directory".to_owned(), |bytes| {
                String::from_utf8_lossy(&bytes).into_owned()
            });
            found.insert(entry.name().to_owned(), text);
        }
        found
    }

    /// Exactly this model is there and nothing else.
    async fn holds_only(&self, which: Which, context: &str) {
        let found = self.found().await;
        let mut expected: Vec<String> = vec![MODEL_FILE.to_owned()];
        for name in which.names {
            expected.extend([(*name).to_owned(), format!("{name}.md5")]);
        }
        expected.sort();
        let names: Vec<_> = found.keys().cloned().collect();
        assert_eq!(names, expected, "{context}");
        for name in which.names {
            assert_eq!(found[*name], format!("{} as {name}", which.content), "{context}");
            assert!(found[&format!("{name}.md5")].ends_with(&format!("*{name}\n")));
        }
        let model = ModelFile::from_json(found[MODEL_FILE].as_bytes()).expect("a model file");
        assert_eq!(model.run, RunId(Uuid::from_u128(which.run)), "{context}");
    }
}

/// What a reader may find under the names of models while `new` replaces `old`.
fn is_whole(found: &BTreeMap<String, String>, old: Option<Which>, new: Which, context: &str) {
    for name in NAMES {
        let whole = |which: Which| format!("{} as {name}", which.content);
        match (found.get(name), old) {
            (Some(text), old) => assert!(
                *text == whole(new) || old.is_some_and(|old| *text == whole(old)),
                "{name} holds {text:?} {context}"
            ),
            (None, None) => {}
            (None, Some(_)) => panic!("{name} is gone {context}"),
        }
    }
    match found.get(MODEL_FILE) {
        Some(json) => {
            ModelFile::from_json(json.as_bytes()).expect("whole");
        }
        None => assert!(old.is_none(), "{MODEL_FILE} is gone {context}"),
    }
}

#[tokio::test]
async fn next_attempt_publishes_after_an_interruption_at_any_call() {
    for old in [None, Some(OLD)] {
        for fault in InjectedFault::ALL {
            for at in 0.. {
                let rig = Rig::new().await;
                if let Some(old) = old {
                    rig.put(old, false).await;
                }
                let exported = rig.export(NEW, 0).await;
                let faults = Faults::at([(at, fault)]);
                let overwrite = old.is_some();
                let first = rig.publish(NEW, &exported, overwrite, Arc::clone(&faults)).await;
                let context = format!("after {fault:?} at call {at}: {:?}", faults.log());
                is_whole(&rig.found().await, old, NEW, &context);
                if !fault.is_crash() && first.is_err() {
                    // The core repeats the same call.
                    let again = rig.publish(NEW, &exported, overwrite, Faults::none()).await;
                    assert!(again.is_ok(), "{again:?} {context}");
                } else if first.is_err() {
                    // The next attempt has a trainer export again.
                    let exported = rig.export(NEW, 1).await;
                    let again = rig.publish(NEW, &exported, overwrite, Faults::none()).await;
                    assert!(again.is_ok(), "{again:?} {context}");
                }
                // A failure that is not reported may leave files that the next publication deletes.
                if first.is_err() || faults.calls() <= at {
                    rig.holds_only(NEW, &context).await;
                }
                if faults.calls() <= at {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn publication_removes_what_killed_ones_left() {
    // What is there before, whether it may be replaced, and whether the publication succeeds.
    for (before, overwrite, is_published) in [
        (None, false, true),
        (Some(OLD), true, true),
        (Some(NEW), false, true),
        (Some(OLD), false, false),
    ] {
        let rig = Rig::new().await;
        if let Some(before) = before {
            rig.put(before, false).await;
        }
        // Exports of processes that were killed, and of another job with this output, whose trainer may be writing.
        for trainer in [7, 8] {
            rig.export(OLD, trainer).await;
        }
        let out = path("/out");
        let others = format!("{}trainer-0.1", staging_prefix("/other"));
        rig.memory.mkdir(&out.join(&others).expect("a name"), Mode::DIR).await.expect("made");
        let draft = out.join(".MODEL.json.of-a-killed-one").expect("a name");
        let text = Bytes::from_static(b"{");
        write_whole(&rig.memory, &draft, Mode::FILE, text).await.expect("written");
        let exported = rig.export(NEW, 0).await;
        let published = rig.publish(NEW, &exported, overwrite, Faults::none()).await;
        assert_eq!(published.is_ok(), is_published, "{published:?}");
        let found = rig.found().await;
        let left: Vec<_> = found.keys().filter(|name| name.starts_with('.')).collect();
        assert_eq!(left, [&others], "{overwrite} {published:?}");
    }
}

#[tokio::test]
async fn overwriting_leaves_exactly_one_model_under_the_same_names() {
    let rig = Rig::new().await;
    rig.put(OLD, false).await;
    rig.holds_only(OLD, "first").await;
    let text = Which { names: &NAMES[..1], ..NEW };
    rig.put(text, true).await;
    rig.holds_only(text, "the text format is not asked for any more").await;
    for _ in 0..3 {
        rig.put(NEW, true).await;
        rig.holds_only(NEW, "again").await;
    }
}

#[tokio::test]
async fn directories_of_early_versions_are_deleted_with_their_model() {
    let rig = Rig::new().await;
    for name in ["trainer-0.1", "trainer-12.10001-3", "trainer-mine"] {
        let dir = path("/out").join(name).expect("a name");
        rig.memory.mkdir(&dir, Mode::DIR).await.expect("made");
    }
    let early = format!(
        "{{\"format_version\":1,\"run\":\"{}\",\"job\":\"j\",\"checkpoint\":{{\"generation\":1,\"number\":1}},\
         \"dir\":\"trainer-0.1\",\"files\":[],\"at_ms\":0}}",
        Uuid::from_u128(7)
    );
    let at = path("/out").join(MODEL_FILE).expect("a name");
    write_whole(&rig.memory, &at, Mode::FILE, Bytes::from(early)).await.expect("written");
    rig.put(NEW, true).await;
    let names: Vec<_> = rig.found().await.into_keys().collect();
    assert!(names.contains(&"trainer-mine".to_owned()), "{names:?}");
    assert_eq!(names.len(), 6, "{names:?}");
}

#[tokio::test]
async fn another_model_is_not_replaced_unless_it_is_asked_for() {
    let rig = Rig::new().await;
    rig.put(OLD, false).await;
    let exported = rig.export(NEW, 0).await;
    let refused = rig.publish(NEW, &exported, false, Faults::none()).await;
    assert!(
        matches!(&refused, Err(PublishError::Taken(text)) if text.contains("--overwrite")),
        "{refused:?}"
    );
    rig.holds_only(OLD, "refused").await;

    // A file that Heddle has not written: there is no MODEL.json.
    let rig = Rig::new().await;
    let own = path("/out").join("model.txt").expect("a name");
    write_whole(&rig.memory, &own, Mode::FILE, Bytes::from_static(b"mine")).await.expect("written");
    let exported = rig.export(NEW, 0).await;
    let refused = rig.publish(NEW, &exported, false, Faults::none()).await;
    assert!(matches!(refused, Err(PublishError::Taken(_))), "{refused:?}");
    let found = rig.found().await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["model.txt"]);
    assert_eq!(found["model.txt"], "mine");
}

#[tokio::test]
async fn a_stale_application_master_replaces_nothing() {
    let rig = Rig::new().await;
    rig.put(OLD, false).await;
    let exported = rig.export(NEW, 0).await;
    // Another process has claimed the checkpoint directory meanwhile.
    rig.claim(2).await;
    let fenced = rig.publish(NEW, &exported, true, Faults::none()).await;
    assert!(matches!(fenced, Err(PublishError::Fenced(_))), "{fenced:?}");
    assert!(rig.found().await["model.txt"].starts_with(OLD.content));

    // The same run has published a later checkpoint.
    let rig = Rig::new().await;
    rig.put(OLD, false).await;
    let earlier = Which { run: OLD.run, cut: (1, 8), ..NEW };
    let exported = rig.export(earlier, 0).await;
    let fenced = rig.publish(earlier, &exported, true, Faults::none()).await;
    assert!(matches!(fenced, Err(PublishError::Fenced(_))), "{fenced:?}");
}

impl Rig {
    /// Writes a save as a trainer does. Its directory and the files.
    async fn save(&self, which: Which, trainer: u32) -> (String, Vec<ExportedFile>) {
        let dir = path("/out/save-1");
        make_dirs(&self.memory, &dir, Mode::DIR).await.expect("made");
        let staged = format!("trainer-{trainer}.1");
        let own = dir.join(&staged).expect("a name");
        self.memory.mkdir(&own, Mode::DIR).await.expect("made");
        let at = own.join(NAMES[0]).expect("a name");
        let content = Bytes::from(which.content);
        let bytes = content.len() as u64;
        write_whole(&self.memory, &at, Mode::FILE, content).await.expect("written");
        let (name, md5) = (NAMES[0].to_owned(), "0".repeat(32));
        (staged, vec![ExportedFile { name, bytes, md5 }])
    }

    async fn publish_save(
        &self,
        which: Which,
        (staged, files): &(String, Vec<ExportedFile>),
        overwrite: bool,
        faults: Arc<Faults>,
    ) -> Result<(), PublishError> {
        let storage = Faulty::over(Arc::new(self.memory.clone()), faults);
        let publication = Publication {
            storage: &*storage,
            dir: &path("/out/save-1"),
            staged,
            staging_prefix: &staging_prefix("/ckpt"),
            mode: Mode::FILE,
            overwrite,
            salt: Salt(Uuid::from_u128(5)),
            checkpoints: &self.checkpoints,
            generation: Generation(1),
            lease: &|| Ok(()),
        };
        let model = ModelFile {
            format_version: 1,
            run: RunId(Uuid::from_u128(which.run)),
            job: "test".to_owned(),
            checkpoint: cut(which.cut.0, which.cut.1),
            dir: staged.clone(),
            files: files.clone(),
            at_ms: 0,
        };
        publication.publish_save(model, cut(1, 3)).await
    }

    /// The directory that `MODEL.json` of the save names, and all directories beside it.
    async fn saved(&self) -> (Option<String>, Vec<String>) {
        let dir = path("/out/save-1");
        let json = read_small(&self.memory, &dir.join(MODEL_FILE).expect("a name"), 1 << 20).await;
        let model = json.ok().map(|json| ModelFile::from_json(&json).expect("whole").dir);
        let entries = self.memory.list(&dir).await.expect("listed");
        let dirs = entries.iter().filter(|entry| entry.kind == EntryKind::Dir);
        (model, dirs.map(|entry| entry.name().to_owned()).collect())
    }
}

#[tokio::test]
async fn save_is_published_once_after_an_interruption_at_any_call() {
    for fault in InjectedFault::ALL {
        for at in 0.. {
            let rig = Rig::new().await;
            let first = rig.save(NEW, 0).await;
            let faults = Faults::at([(at, fault)]);
            let published = rig.publish_save(NEW, &first, false, Arc::clone(&faults)).await;
            let context = format!("after {fault:?} at call {at}: {:?}", faults.log());
            let (named, _) = rig.saved().await;
            assert!(named.as_deref().is_none_or(|dir| dir == first.0), "{context}");
            // The next attempt has another trainer write it.
            let second = rig.save(NEW, 1).await;
            let again = rig.publish_save(NEW, &second, false, Faults::none()).await;
            assert!(again.is_ok(), "{again:?} {context}");
            let (model, dirs) = rig.saved().await;
            let model = model.expect("published");
            assert_eq!(dirs, [model.as_str()], "{context}");
            if named.is_some() || published.is_ok() {
                assert_eq!(model, first.0, "it is not replaced: {context}");
            }
            if faults.calls() <= at {
                break;
            }
        }
    }
}

#[tokio::test]
async fn save_of_another_run_is_replaced_only_if_asked() {
    let rig = Rig::new().await;
    let old_run = Which { run: 9, ..OLD };
    let old = rig.save(old_run, 0).await;
    rig.publish_save(old_run, &old, false, Faults::none()).await.expect("published");
    let new = rig.save(NEW, 1).await;
    let refused = rig.publish_save(NEW, &new, false, Faults::none()).await;
    let Err(PublishError::Taken(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("/out/save-1/MODEL.json exists already"), "{text}");
    assert_eq!(rig.saved().await, (Some(old.0.clone()), vec![old.0]));
    let new = rig.save(NEW, 1).await;
    rig.publish_save(NEW, &new, true, Faults::none()).await.expect("published");
    assert_eq!(rig.saved().await, (Some(new.0.clone()), vec![new.0]));
}

/// The earlier run of a job that continues had published the save, and had not recorded it.
#[tokio::test]
async fn save_of_the_run_that_is_continued_is_kept() {
    let rig = Rig::new().await;
    // Generation 1 is a claim of run 1.
    let earlier = Which { run: 1, ..NEW };
    let first = rig.save(earlier, 0).await;
    rig.publish_save(earlier, &first, false, Faults::none()).await.expect("published");
    let second = rig.save(NEW, 1).await;
    rig.publish_save(NEW, &second, false, Faults::none()).await.expect("it is there");
    assert_eq!(rig.saved().await, (Some(first.0.clone()), vec![first.0]));
}

#[tokio::test]
async fn superseded_attempt_publishes_no_save() {
    let rig = Rig::new().await;
    let save = rig.save(NEW, 0).await;
    rig.claim(2).await;
    let refused = rig.publish_save(NEW, &save, false, Faults::none()).await;
    assert!(matches!(refused, Err(PublishError::Fenced(_))), "{refused:?}");
    assert_eq!(rig.saved().await.0, None);
}
