//! The configuration directories of a cluster: the files of `yarn-conf/single-node/conf`, with the places filled in
//! and the overrides of the options added.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::options::Options;

/// `yarn-conf/single-node` of this source tree.
pub(super) fn single_node() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../yarn-conf/single-node")
}

/// Properties by file name.
type Overrides = BTreeMap<String, Vec<(String, String)>>;

/// What the options add to the files. Names with `client-` are those of the client's directory.
fn overrides(options: &Options, net: &str) -> Overrides {
    let mut all = Overrides::new();
    let mut set = |file: &str, key: &str, value: String| {
        all.entry(file.to_owned())
            .or_default()
            .push((key.to_owned(), value));
    };
    let yarn = "yarn-site.xml";
    if options.resourcemanagers == 2 {
        for file in [yarn, "client-yarn-site.xml"] {
            set(file, "yarn.resourcemanager.ha.enabled", "true".into());
            set(file, "yarn.resourcemanager.cluster-id", "heddle".into());
            set(file, "yarn.resourcemanager.ha.rm-ids", "rm1,rm2".into());
            for n in 1..=2 {
                set(
                    file,
                    &format!("yarn.resourcemanager.hostname.rm{n}"),
                    format!("{net}.{n}"),
                );
            }
            // Without ZooKeeper nobody elects: an administrator's call makes one active.
            set(
                file,
                "yarn.resourcemanager.ha.automatic-failover.enabled",
                "false".into(),
            );
        }
    }
    if options.gpus_per_node > 0 {
        for file in ["resource-types.xml", "client-resource-types.xml"] {
            set(file, "yarn.resource-types", "yarn.io/gpu".into());
        }
        let key = "yarn.nodemanager.resource-type.yarn.io/gpu";
        set("node-resources.xml", key, options.gpus_per_node.to_string());
    }
    let expiry = options.am_expiry_ms.to_string();
    set(yarn, "yarn.am.liveness-monitor.expiry-interval-ms", expiry);
    set(
        yarn,
        "yarn.nm.liveness-monitor.expiry-interval-ms",
        options.nm_expiry_ms.to_string(),
    );
    set(
        yarn,
        "yarn.resourcemanager.am.max-attempts",
        options.am_max_attempts.to_string(),
    );
    if let Some(seconds) = options.amrm_token_roll_s {
        set(
            yarn,
            "yarn.resourcemanager.am-rm-tokens.master-key-rolling-interval-secs",
            seconds.to_string(),
        );
    }
    for (file, key, value) in &options.properties {
        set(file, key, value.clone());
    }
    all
}

/// Writes `dir/conf` (daemons), `dir/client-conf` and, for two ResourceManagers, `dir/conf-rm1` and `dir/conf-rm2`.
pub(super) fn write(dir: &Path, net: &str, jars: &Path, options: &Options) -> Result<()> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective())?
        .context("this user has no name")?;
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let places = [
        ("@NET@", net.to_owned()),
        ("@DIR@", dir.display().to_string()),
        ("@DN@", options.datanodes.to_string()),
        ("@REPL@", options.datanodes.min(3).to_string()),
        ("@USER@", user.name),
        ("@JARS@", jars.display().to_string()),
    ];
    let fill = |text: String| {
        places
            .iter()
            .fold(text, |text, (place, value)| text.replace(place, value))
    };

    let (conf, client) = (dir.join("conf"), dir.join("client-conf"));
    // The HDFS jar has no web pages of its own; empty directories are enough for the servers to start.
    for folder in ["webapps/hdfs", "webapps/datanode"] {
        fs::create_dir_all(conf.join(folder))?;
    }
    fs::create_dir_all(&client)?;
    let place = |name: &str| match name.strip_prefix("client-") {
        Some(name) => client.join(name),
        None => conf.join(name),
    };
    for entry in fs::read_dir(single_node().join("conf"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        fs::write(place(&name), fill(fs::read_to_string(entry.path())?))?;
    }
    for (name, properties) in overrides(options, net) {
        let path = place(&name);
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|_| "<configuration>\n</configuration>\n".to_owned());
        fs::write(&path, with(&text, &properties)?)?;
    }
    for name in ["core-site.xml", "log4j.properties"] {
        fs::copy(conf.join(name), client.join(name))?;
    }
    if options.resourcemanagers == 2 {
        for n in 1..=2 {
            let own = dir.join(format!("conf-rm{n}"));
            fs::create_dir_all(&own)?;
            let id = ("yarn.resourcemanager.ha.id".to_owned(), format!("rm{n}"));
            fs::write(
                own.join("yarn-site.xml"),
                with(&fs::read_to_string(conf.join("yarn-site.xml"))?, &[id])?,
            )?;
        }
    }
    // Names without DNS. The machine's own must be there or every daemon ends; the first line makes the
    // ResourceManager write its address, not "localhost", into links.
    fs::write(
        dir.join("hosts"),
        format!("{net}.1 {net}.1 {host}\n127.0.0.1 localhost\n"),
    )?;
    Ok(())
}

/// The file with more properties at its end, where they win over earlier ones of the same name.
fn with(text: &str, properties: &[(String, String)]) -> Result<String> {
    let (head, tail) = text
        .rsplit_once("</configuration>")
        .context("no </configuration>")?;
    let mut all = head.to_owned();
    for (key, value) in properties {
        all.push_str(&format!(
            "  <property><name>{key}</name><value>{value}</value></property>\n"
        ));
    }
    Ok(all + "</configuration>" + tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_property_is_added_before_the_end() {
        let text = with(
            "<configuration>\n</configuration>\n",
            &[("a".into(), "1".into())],
        )
        .expect("a configuration");
        assert_eq!(
            text,
            "<configuration>\n  <property><name>a</name><value>1</value></property>\n</configuration>\n"
        );
    }
}
