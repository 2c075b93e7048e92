//! The site's defaults: values that stand between the built-in defaults and the job file.
//!
//! The file has the sections of a job file. It may set only keys that do not change what a job computes
//! ([`Key::by_site`](super::Key)), so that two sites train the same model from the same job file. `final` at its top lists
//! keys that a job file and the command line cannot change, as `<final>` of Hadoop's configuration does; a different
//! value there is a problem, where Hadoop ignores it.

use std::collections::BTreeMap;

use super::super::sections::{
    AmSpec, CheckpointSpec, ControllerSpec, LivenessSpec, NetworkSpec, PserverSpec, RunSpec,
    TrainerSpec,
};
use super::super::yarn::{SubmitSpec, YarnSpec};
use super::context::{ReadContext, Shown, SiteFile};
use super::keys;
use super::known_keys::known_keys;
use super::origin::Origin;
use super::problem::{Problem, Problems};
use super::raw::{self, Raw, RawValue};
use super::scalar::{list_of, text_of};
use super::take::{Take, Taken};

/// The list of keys that only the site sets.
const FINAL: &str = "final";

/// The values of a file of site defaults.
#[derive(Debug, Default)]
pub(super) struct SiteValues {
    values: BTreeMap<&'static str, Raw>,
    /// Final keys, and where the list names them.
    finals: BTreeMap<&'static str, Origin>,
}

impl SiteValues {
    /// Reads the file. Keys that a site may not set become problems.
    pub(super) fn parse(file: &SiteFile, problems: &mut Vec<Problem>) -> Self {
        let mut table = match raw::parse_site(&file.file, &file.text) {
            Ok(table) => table,
            Err(problem) => {
                problems.push(problem);
                return Self::default();
            }
        };
        let finals = table.remove(FINAL);
        let mut values = known_keys(table, problems);
        values.retain(|path, raw| {
            let allowed = keys::find(path).is_some_and(|key| key.by_site);
            if !allowed {
                problems.push(problem(
                    &raw.origin,
                    path,
                    raw.to_string(),
                    "a site cannot set this key, which belongs to the job; set it in the job file",
                ));
            }
            allowed
        });
        let finals = finals.map(|list| final_keys(&list, &values, problems)).unwrap_or_default();
        Self { values, finals }
    }

    /// Puts the values into the table of a job file where it has none.
    pub(super) fn fill(&self, table: &mut BTreeMap<String, Raw>) {
        for (path, raw) in &self.values {
            let Some((section, name)) = path.split_once('.') else {
                continue;
            };
            let section = table.entry(section.to_owned()).or_insert_with(|| Raw {
                value: RawValue::Table(BTreeMap::new()),
                origin: raw.origin.clone(),
            });
            // A section that is not a table is a problem of the job file.
            if let RawValue::Table(fields) = &mut section.value {
                fields.entry(name.to_owned()).or_insert_with(|| raw.clone());
            }
        }
    }

    /// Notes a problem for each final key that has another value.
    pub(super) fn check_finals(
        &self,
        given: &BTreeMap<&'static str, Raw>,
        problems: &mut Vec<Problem>,
    ) {
        for (key, at) in &self.finals {
            if let (Some(own), Some(now)) = (self.values.get(key), given.get(key))
                && own.to_string() != now.to_string()
            {
                let what = format!("is final ({at}); remove it here, the site's value is {own}");
                problems.push(problem(changed_at(now), key, now.to_string(), &what));
            }
        }
    }
}

/// The place of the value, or of the first field that is not the site's.
fn changed_at(raw: &Raw) -> &Origin {
    match &raw.value {
        RawValue::Table(fields) => fields
            .values()
            .map(|field| &field.origin)
            .find(|origin| !matches!(origin, Origin::Site { .. }))
            .unwrap_or(&raw.origin),
        _ => &raw.origin,
    }
}

fn problem(at: &Origin, key: &str, value: String, what: &str) -> Problem {
    Problem { place: at.to_string(), key: key.to_owned(), value, what: what.to_owned() }
}

fn final_keys(
    list: &Raw,
    values: &BTreeMap<&'static str, Raw>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<&'static str, Origin> {
    let mut finals = BTreeMap::new();
    let names = list_of(list).and_then(|items| {
        items.iter().map(|item| Ok((text_of(item)?, item))).collect::<Result<Vec<_>, String>>()
    });
    let names = match names {
        Ok(names) => names,
        Err(_) => {
            let what = "expected a list of keys such as [\"yarn.queue\"]";
            problems.push(problem(&list.origin, FINAL, list.to_string(), what));
            return finals;
        }
    };
    for (name, item) in names {
        match values.get_key_value(name) {
            Some((key, _)) => {
                finals.insert(*key, item.origin.clone());
            }
            None => {
                let what = "this file has no value for that key; add one, or remove it from final";
                problems.push(problem(&item.origin, FINAL, item.to_string(), what));
            }
        }
    }
    finals
}

/// The values of a file of site defaults, for display: the keys that it sets, and the list of final keys.
///
/// # Errors
/// All problems of the file, each with its line.
pub fn read_site(file: &SiteFile) -> Result<Vec<Shown>, Problems> {
    // Folders for the defaults of keys that no site sets.
    let (job_dir, working_dir) = (file.dir.clone(), file.dir.clone());
    let site = Some(file.clone());
    let context = ReadContext { job_dir, working_dir, site, ..ReadContext::default() };
    let mut problems = Vec::new();
    let site = SiteValues::parse(file, &mut problems);
    let mut take = Take::new(&context, site.values.clone(), problems);
    // The sections with keys of a site. None of them has a required key.
    let _values = (
        PserverSpec::read(&mut take),
        TrainerSpec::read(&mut take),
        CheckpointSpec::read(&mut take),
        AmSpec::read(&mut take),
        NetworkSpec::read(&mut take),
        LivenessSpec::read(&mut take),
        RunSpec::read(&mut take),
        ControllerSpec::read(&mut take),
        SubmitSpec::read(&mut take),
        YarnSpec::read(&mut take),
    );
    let Taken { mut shown, problems, .. } = take.finish();
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let of_site =
        |key: &super::Key| shown.remove(key.path).filter(|_| site.values.contains_key(key.path));
    let mut rows: Vec<Shown> = keys().filter_map(of_site).collect();
    if let Some(origin) = site.finals.values().next() {
        let names: Vec<String> = site.finals.keys().map(|key| format!("{key:?}")).collect();
        rows.push(Shown {
            key: FINAL,
            value: format!("[{}]", names.join(", ")),
            origin: origin.clone(),
            resolved: None,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::super::key::ResumeRule;
    use super::super::origin::KeyOverride;
    use super::super::read::{Job, read};
    use super::*;
    use crate::job_spec::{SpecDigest, identity};

    const JOB: &str = "name = \"ctr\"\n[data]\ntrain = \"d\"\n[model]\nfeatures = 10\n";
    const SITE: &str = "final = [\"yarn.queue\"]\n[yarn]\nqueue = \"ml\"\nfiles = [\"ca.pem\"]\n\
        [checkpoint]\nevery = \"5min\"\n[pservers]\nmemory = \"1GiB\"\n";

    fn site(text: &str) -> SiteFile {
        let file = "/etc/heddle/heddle-defaults.toml".to_owned();
        SiteFile { file, dir: "/etc/heddle".into(), text: text.to_owned() }
    }

    fn read_with(site_text: &str, job: &str, sets: &[&str]) -> Result<Job, Problems> {
        let context = ReadContext {
            file: "job.toml".to_owned(),
            job_dir: "/jobs".into(),
            working_dir: "/home/u".into(),
            sets: sets.iter().map(|set| KeyOverride::set(set)).collect(),
            site: (!site_text.is_empty()).then(|| site(site_text)),
            ..ReadContext::default()
        };
        read(job, &context)
    }

    fn refused(site_text: &str, job: &str, sets: &[&str]) -> String {
        read_with(site_text, job, sets).unwrap_err().to_string()
    }

    #[test]
    fn the_site_stands_between_defaults_and_the_job_file() {
        let more = format!("{JOB}[pservers]\nmemory = \"2GiB\"\ncount = 3\n");
        let job = read_with(SITE, &more, &["checkpoint.every=1 pass"]).unwrap();
        let shown = |key: &str| {
            let shown = job.shown.iter().find(|shown| shown.key == key).unwrap();
            format!("{} ({})", shown.value, shown.origin)
        };
        assert_eq!(shown("yarn.queue"), "\"ml\" (/etc/heddle/heddle-defaults.toml:3)");
        assert_eq!(shown("pservers.memory"), "\"2GiB\" (job.toml:7)");
        assert_eq!(shown("checkpoint.every"), "\"1 pass\" (--set checkpoint.every=1 pass)");
        assert_eq!(shown("yarn.priority"), "0 (default)");
        assert_eq!(job.spec.yarn.files[0].from.to_string(), "/etc/heddle/ca.pem");
    }

    #[test]
    fn the_values_of_the_site_are_not_part_of_the_job() {
        let plain = read_with("", JOB, &[]).unwrap().spec;
        let with_site = read_with(SITE, JOB, &[]).unwrap().spec;
        let other = SITE.replace("5min", "7min").replace("1GiB", "3GiB");
        let with_other = read_with(&other, JOB, &[]).unwrap().spec;
        assert_eq!(SpecDigest::of(&with_site), SpecDigest::of(&with_other));
        for (now, before) in [(&with_site, &plain), (&plain, &with_site), (&with_site, &with_other)]
        {
            assert_eq!(identity::differences(now, before), []);
        }
        // What the job file states is.
        let stated = format!("{JOB}[checkpoint]\nevery = \"7min\"\n");
        let stated = read_with(SITE, &stated, &[]).unwrap().spec;
        assert_eq!(identity::differences(&stated, &plain).len(), 1);
        let json =
            serde_json::from_slice::<crate::job_spec::JobSpec>(&with_site.to_json()).unwrap();
        assert_eq!(SpecDigest::of(&json), SpecDigest::of(&with_site));
    }

    #[test]
    fn a_final_key_keeps_the_sites_value() {
        let other = format!("{JOB}[yarn]\nqueue = \"mine\"\n");
        let message = refused(SITE, &other, &[]);
        let is_final = "is final (/etc/heddle/heddle-defaults.toml:1); remove it here, \
                        the site's value is \"ml\"";
        assert_eq!(message, format!("job.toml:7: yarn.queue = \"mine\": {is_final}"));
        let message = refused(SITE, JOB, &["yarn.queue=mine"]);
        assert_eq!(message, format!("--set yarn.queue=mine: yarn.queue = \"mine\": {is_final}"));
        // The same value changes nothing.
        read_with(SITE, JOB, &["yarn.queue=ml"]).unwrap();
        let tables = "final = [\"yarn.env\"]\n[yarn]\nenv = { A = \"1\" }\n";
        let message = refused(tables, JOB, &["yarn.env.B=2"]);
        assert!(message.starts_with("--set yarn.env.B=2: yarn.env = "), "{message}");
    }

    #[test]
    fn keys_that_belong_to_the_job_are_refused_with_their_line() {
        for (text, message) in [
            ("[model]\nl2 = 1.0", "site:2: model.l2 = 1.0: a site cannot set this key"),
            ("[training]\nseed = 1", "site:2: training.seed = 1: a site cannot set this key"),
            ("name = \"x\"", "site:1: name = \"x\": a site cannot set this key"),
            ("[trainers]\nmax = 5", "site:2: trainers.max = 5: a site cannot set this key"),
            ("[yarn]\nquue = \"x\"", "site:2: yarn.quue: unknown key; did you mean yarn.queue?"),
            ("[yarn]\npriority = \"x\"", "site:2: yarn.priority = \"x\": expected a whole number"),
            ("final = [\"yarn.queue\"]", "site:1: final = \"yarn.queue\": this file has no value"),
            ("final = \"yarn.queue\"", "site:1: final = \"yarn.queue\": expected a list of keys"),
            ("[yarn", "site:1: not TOML: "),
        ] {
            let file = SiteFile { file: "site".to_owned(), ..site(text) };
            let refused = read_site(&file).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
            let context = ReadContext {
                job_dir: "/jobs".into(),
                working_dir: "/home/u".into(),
                site: Some(file),
                ..ReadContext::default()
            };
            let refused = read(JOB, &context).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
    }

    #[test]
    fn the_file_alone_is_shown_with_its_lines() {
        let rows = read_site(&site(SITE)).unwrap();
        let rows: Vec<String> =
            rows.iter().map(|row| format!("{} {} {}", row.key, row.value, row.origin)).collect();
        let at = "/etc/heddle/heddle-defaults.toml";
        assert_eq!(
            rows,
            [
                format!("pservers.memory \"1GiB\" {at}:8"),
                format!("checkpoint.every \"5min\" {at}:6"),
                format!("yarn.queue \"ml\" {at}:3"),
                format!("yarn.files [\"ca.pem\"] {at}:4"),
                format!("final [\"yarn.queue\"] {at}:1"),
            ]
        );
    }

    #[test]
    fn no_key_of_a_site_is_fixed_for_a_job() {
        let by_site: Vec<_> = keys().filter(|key| key.by_site).collect();
        assert!(by_site.len() > 20, "{}", by_site.len());
        for key in by_site {
            assert_ne!(key.resume, ResumeRule::Never, "{}", key.path);
        }
    }
}
