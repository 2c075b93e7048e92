//! Dependencies point one way, pure crates stay pure, and the crates that the project promises are really used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        // For this platform alone: packages of others were never fetched.
        .other_options(vec![
            "--locked".to_owned(),
            "--filter-platform".to_owned(),
            "x86_64-unknown-linux-gnu".to_owned(),
        ])
        .exec()
        .expect("cargo prints the metadata of this workspace")
}

/// Which of our packages each of our packages may use outside its tests.
fn arrows() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("heddle-backoff", &[][..]),
        ("heddle-fail-points", &[]),
        ("heddle-gssapi", &[]),
        ("heddle-hadoop", &["heddle-backoff", "heddle-gssapi"]),
        ("heddle-yarn", &["heddle-backoff", "heddle-hadoop"]),
        ("heddle-md5-lanes", &[]),
        ("heddle-optimizer", &[]),
        ("heddle-protocol", &["heddle-optimizer"]),
        ("heddle-channel", &["heddle-protocol"]),
        ("heddle-columns", &["heddle-protocol"]),
        (
            "heddle-input",
            &[
                "heddle-avro",
                "heddle-columns",
                "heddle-parquet",
                "heddle-protocol",
                "heddle-storage",
            ],
        ),
        ("heddle-avro", &["heddle-columns"]),
        ("heddle-parquet", &["heddle-columns"]),
        ("heddle-controller-core", &[]),
        (
            "heddle-controller",
            &["heddle-controller-core", "heddle-protocol", "heddle-storage", "heddle-yarn"],
        ),
        ("heddle-metrics", &["heddle-protocol"]),
        ("heddle-self-faults", &["heddle-protocol"]),
        ("heddle-telemetry", &[]),
        ("heddle-am-core", &["heddle-backoff", "heddle-metrics", "heddle-protocol"]),
        (
            "heddle-storage",
            &["heddle-backoff", "heddle-hadoop", "heddle-md5-lanes", "heddle-protocol"],
        ),
        ("heddle-shard", &["heddle-optimizer", "heddle-protocol"]),
        (
            "heddle-client",
            &["heddle-backoff", "heddle-channel", "heddle-fail-points", "heddle-protocol"],
        ),
        (
            "heddle-agent",
            &["heddle-backoff", "heddle-channel", "heddle-protocol", "heddle-self-faults"],
        ),
        (
            "heddle-am",
            &[
                "heddle-am-core",
                "heddle-backoff",
                "heddle-channel",
                "heddle-fail-points",
                "heddle-hadoop",
                "heddle-input",
                "heddle-protocol",
                "heddle-self-faults",
                "heddle-storage",
                "heddle-telemetry",
                "heddle-yarn",
            ],
        ),
        (
            "heddle-pserver",
            &[
                "heddle-agent",
                "heddle-backoff",
                "heddle-channel",
                "heddle-fail-points",
                "heddle-protocol",
                "heddle-self-faults",
                "heddle-shard",
                "heddle-storage",
                "heddle-telemetry",
            ],
        ),
        (
            "heddle-trainer",
            &[
                "heddle-agent",
                "heddle-backoff",
                "heddle-client",
                "heddle-columns",
                "heddle-fail-points",
                "heddle-input",
                "heddle-metrics",
                "heddle-optimizer",
                "heddle-protocol",
                "heddle-self-faults",
                "heddle-storage",
                "heddle-telemetry",
            ],
        ),
        (
            "heddle-cli",
            &[
                "heddle-agent",
                "heddle-am",
                "heddle-am-core",
                "heddle-bench",
                "heddle-channel",
                "heddle-columns",
                "heddle-controller",
                "heddle-controller-core",
                "heddle-fail-points",
                "heddle-hadoop",
                "heddle-input",
                "heddle-protocol",
                "heddle-pserver",
                "heddle-storage",
                "heddle-telemetry",
                "heddle-trainer",
                "heddle-yarn",
            ],
        ),
        (
            "heddle-bench",
            &[
                "click-log",
                "heddle-channel",
                "heddle-input",
                "heddle-optimizer",
                "heddle-protocol",
                "heddle-pserver",
                "heddle-shard",
                "heddle-trainer",
            ],
        ),
        ("click-log", &[]),
        ("custom-trainer", &["heddle-client", "heddle-protocol", "heddle-trainer"]),
        ("hello-yarn", &["heddle-hadoop", "heddle-yarn"]),
    ])
}

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let ours: BTreeSet<_> =
        metadata.workspace_packages().iter().map(|package| package.name.to_string()).collect();
    let arrows = arrows();
    for package in metadata.workspace_packages() {
        if matches!(package.name.as_str(), "heddle-tests" | "heddle-simulation") {
            continue;
        }
        let allowed = arrows.get(package.name.as_str()).unwrap_or_else(|| {
            panic!("{} has no place in the layering; give it one here", package.name)
        });
        for dependency in &package.dependencies {
            let outside_tests = dependency.kind != DependencyKind::Development;
            if outside_tests && ours.contains(&dependency.name) {
                assert!(
                    allowed.contains(&dependency.name.as_str()),
                    "{} may not depend on {}",
                    package.name,
                    dependency.name
                );
            }
        }
    }
}

#[test]
fn the_pure_crates_have_no_runtime_below_them() {
    let metadata = metadata();
    for name in [
        "heddle-am-core",
        "heddle-avro",
        "heddle-backoff",
        "heddle-columns",
        "heddle-controller-core",
        "heddle-md5-lanes",
        "heddle-metrics",
        "heddle-optimizer",
        "heddle-parquet",
        "heddle-protocol",
        "heddle-shard",
    ] {
        let below = everything_below(&metadata, name);
        for runtime in ["tokio", "hyper", "mio", "socket2", "async-std", "smol", "rayon"] {
            assert!(!below.contains(runtime), "{name} has {runtime} below it");
        }
    }
}

fn everything_below(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let resolve = metadata.resolve.as_ref().expect("metadata was asked for with dependencies");
    let name_of: BTreeMap<_, _> =
        metadata.packages.iter().map(|package| (&package.id, package.name.to_string())).collect();
    let root = metadata
        .packages
        .iter()
        .find(|package| package.name == name)
        .unwrap_or_else(|| panic!("{name} is not in the workspace"));
    let mut below = BTreeSet::new();
    let mut open = vec![&root.id];
    while let Some(id) = open.pop() {
        let node =
            resolve.nodes.iter().find(|node| &node.id == id).expect("every package is resolved");
        for dependency in &node.deps {
            let real =
                dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development);
            if real && below.insert(name_of[&dependency.pkg].clone()) {
                open.push(&dependency.pkg);
            }
        }
    }
    below
}

/// The machine parts of crates that also have IO: these files may not name a runtime, a socket or a clock.
#[test]
fn client_and_agent_cores_name_no_runtime_socket_or_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let shells = ["environment.rs", "shell"];
    for folder in ["container/client/src", "container/agent/src"] {
        let machines: Vec<_> = rust_files(&root.join(folder))
            .into_iter()
            .filter(|file| {
                !file.components().any(|part| shells.iter().any(|shell| part.as_os_str() == *shell))
            })
            .collect();
        assert!(!machines.is_empty(), "{folder} has no machine");
        for file in machines {
            let text = std::fs::read_to_string(&file).expect("a source file is readable");
            for banned in [
                "tokio",
                "std::net::Tcp",
                "Instant::now",
                "SystemTime::now",
                "std::thread",
                "getrandom",
            ] {
                assert!(!text.contains(banned), "{} names {banned}", file.display());
            }
        }
    }
}

/// What `scripts/check-publish.sh` finds with a network: a package that is published needs others by version, not by path alone.
#[test]
fn crates_for_publishing_depend_on_published_ones() {
    let metadata = metadata();
    let published = ["heddle-backoff", "heddle-gssapi", "heddle-hadoop", "heddle-yarn"];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-publish.sh");
    let script = std::fs::read_to_string(script).expect("the script is readable");
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        assert_eq!(package.publish.is_none(), published.contains(&name), "publish of {name}");
        if !published.contains(&name) {
            continue;
        }
        assert!(script.contains(&format!("-p {name}")), "scripts/check-publish.sh has no {name}");
        for dependency in &package.dependencies {
            let by_path_alone = dependency.path.is_some() && dependency.req.comparators.is_empty();
            let own = &dependency.name;
            assert!(!by_path_alone, "{name} needs {own} by path alone");
            let is_published = dependency.path.is_none() || published.contains(&own.as_str());
            assert!(is_published, "{name} needs {own}, which is not published");
        }
        let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
        for file in ["README.md", "CHANGELOG.md", "LICENSE"] {
            assert!(folder.join(file).exists(), "{name} has no {file}");
        }
        let described = package.description.is_some()
            && package.license.is_some()
            && package.documentation.is_some()
            && !package.keywords.is_empty()
            && !package.categories.is_empty();
        assert!(described, "{name} lacks metadata");
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder is readable").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn the_promised_crates_are_direct_dependencies_and_used() {
    let metadata = metadata();
    let promised = [
        "clap",
        "crossbeam",
        "hdfs-native",
        "hyper",
        "md-5",
        "quick-xml",
        "serde_json",
        "tokio",
        "tracing",
        "uuid",
    ];
    for name in promised {
        let users: Vec<_> = metadata
            .workspace_packages()
            .into_iter()
            .filter(|package| {
                package.dependencies.iter().any(|dependency| {
                    dependency.name == name && dependency.kind == DependencyKind::Normal
                })
            })
            .collect();
        assert!(!users.is_empty(), "no package depends on {name}");
        let module = name.replace('-', "_").replace("md_5", "md5");
        let used = users.iter().any(|package| {
            let folder =
                package.manifest_path.parent().expect("a manifest lies in a folder").join("src");
            rust_files(folder.as_std_path()).iter().any(|file| {
                std::fs::read_to_string(file)
                    .is_ok_and(|text| text.contains(&format!("{module}::")))
            })
        });
        assert!(used, "{name} is declared and nowhere used");
    }
}
