//! The configuration directories of a cluster: the files of `yarn-conf/single-node/conf`, with the places filled in
//! and the overrides of the options added.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::net::datanode_ports;
use super::options::Options;

/// `yarn-conf/single-node` of this source tree.
pub(super) fn single_node() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../yarn-conf/single-node")
}

/// Properties by file name.
type Overrides = BTreeMap<String, Vec<(String, String)>>;

/// List of nodes to take out of service, in the cluster's directory.
pub(super) const EXCLUDED: &str = "excluded-nodes";

/// Name service of a pair of NameNodes.
pub(super) const SERVICE: &str = "heddle";

/// Where a pair of NameNodes shares its edits.
pub(super) fn shared_edits(dir: &Path) -> PathBuf {
    dir.join("edits")
}

/// What the options add to the files. Names with `client-` are those of the client's directory.
fn overrides(options: &Options, net: &str, dir: &Path) -> Overrides {
    let mut all = Overrides::new();
    let mut set = |file: &str, key: &str, value: String| {
        all.entry(file.to_owned()).or_default().push((key.to_owned(), value));
    };
    let yarn = "yarn-site.xml";
    if options.resourcemanagers == 2 {
        for file in [yarn, "client-yarn-site.xml"] {
            set(file, "yarn.resourcemanager.ha.enabled", "true".into());
            set(file, "yarn.resourcemanager.cluster-id", "heddle".into());
            set(file, "yarn.resourcemanager.ha.rm-ids", "rm1,rm2".into());
            for n in 1..=2 {
                set(file, &format!("yarn.resourcemanager.hostname.rm{n}"), format!("{net}.{n}"));
            }
            // Without ZooKeeper there is no election: an administrator's call makes one active.
            set(file, "yarn.resourcemanager.ha.automatic-failover.enabled", "false".into());
        }
    }
    if options.namenodes == 2 {
        for file in ["hdfs-site.xml", "client-hdfs-site.xml"] {
            let ns = SERVICE;
            set(file, "dfs.nameservices", ns.into());
            // With the blank that Hadoop's own page about high availability has.
            set(file, &format!("dfs.ha.namenodes.{ns}"), "nn1, nn2".into());
            for n in 1..=2 {
                let rpc = format!("dfs.namenode.rpc-address.{ns}.nn{n}");
                set(file, &rpc, format!("{net}.{n}:8020"));
                let http = format!("dfs.namenode.http-address.{ns}.nn{n}");
                set(file, &http, format!("{net}.{n}:9870"));
            }
            let provider = "ha.ConfiguredFailoverProxyProvider";
            set(
                file,
                &format!("dfs.client.failover.proxy.provider.{ns}"),
                format!("org.apache.hadoop.hdfs.server.namenode.{provider}"),
            );
            // The test is the fence: it has killed the other one, or the other one obeys.
            set(file, "dfs.ha.fencing.methods", "shell(/bin/true)".into());
        }
        set("core-site.xml", "fs.defaultFS", format!("hdfs://{SERVICE}"));
        let hdfs = "hdfs-site.xml";
        let edits = format!("file://{}", shared_edits(dir).display());
        set(hdfs, "dfs.namenode.shared.edits.dir", edits);
        // How far the standby is behind; the default is a minute.
        set(hdfs, "dfs.ha.tail-edits.period", "1s".into());
    }
    if options.gpus_per_node > 0 {
        for file in ["resource-types.xml", "client-resource-types.xml"] {
            set(file, "yarn.resource-types", "yarn.io/gpu".into());
        }
        let key = "yarn.nodemanager.resource-type.yarn.io/gpu";
        set("node-resources.xml", key, options.gpus_per_node.to_string());
    }
    let excluded = dir.join(EXCLUDED).display().to_string();
    set(yarn, "yarn.resourcemanager.nodes.exclude-path", excluded);
    let expiry = options.am_expiry_ms.to_string();
    set(yarn, "yarn.am.liveness-monitor.expiry-interval-ms", expiry);
    set(yarn, "yarn.nm.liveness-monitor.expiry-interval-ms", options.nm_expiry_ms.to_string());
    set(yarn, "yarn.resourcemanager.am.max-attempts", options.am_max_attempts.to_string());
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

/// Writes `dir/conf` (daemons), `dir/client-conf` and, what a daemon has for itself, such as `dir/conf-dn1`.
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
    let fill =
        |text: String| places.iter().fold(text, |text, (place, value)| text.replace(place, value));

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
    for (name, properties) in overrides(options, net, dir) {
        let path = place(&name);
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|_| "<configuration>\n</configuration>\n".to_owned());
        fs::write(&path, fill(with(&text, &properties)?))?;
    }
    fs::copy(conf.join("core-site.xml"), client.join("core-site.xml"))?;
    // What a client prints is not to stand between its log.
    let log = fs::read_to_string(conf.join("log4j.properties"))?;
    fs::write(client.join("log4j.properties"), log.replace("System.out", "System.err"))?;
    let own = |daemon: String, file: &str, properties: &[(String, String)]| -> Result<()> {
        let own = dir.join(format!("conf-{daemon}"));
        fs::create_dir_all(&own)?;
        let text = fs::read_to_string(conf.join(file))?;
        Ok(fs::write(own.join(file), with(&text, properties)?)?)
    };
    // Each of a pair needs its own id: all addresses are this machine's.
    let (rm_id, nn_id) = ("yarn.resourcemanager.ha.id", "dfs.ha.namenode.id");
    for (count, name, file, key) in [
        (options.resourcemanagers, "rm", "yarn-site.xml", rm_id),
        (options.namenodes, "nn", "hdfs-site.xml", nn_id),
    ] {
        for n in (1..=count).filter(|_| count == 2) {
            let id = format!("{name}{n}");
            own(id.clone(), file, &[(key.to_owned(), id)])?;
        }
    }
    for n in 1..=options.datanodes {
        let [data, web, ipc] = datanode_ports(net, n);
        let address = |kind: &str, host: &str, port| {
            let key = format!("dfs.datanode.{kind}address");
            (key, format!("{host}:{port}"))
        };
        let addresses = [
            address("", "127.0.0.1", data),
            // The NameNode sends browsers to the DataNode's name.
            address("http.", "${heddle.host}", web),
            address("ipc.", "127.0.0.1", ipc),
        ];
        own(format!("dn{n}"), "hdfs-site.xml", &addresses)?;
    }
    // Figures of a daemon's beans are of the last second, not of the last ten.
    fs::write(conf.join("hadoop-metrics2.properties"), "*.period=1\n")?;
    // The nodes that an administrator takes out of service.
    fs::write(dir.join(EXCLUDED), "")?;
    // Names without DNS. The machine's own must be there or every daemon ends; the first line makes the
    // ResourceManager write its address, not "localhost", into links.
    fs::write(dir.join("hosts"), format!("{net}.1 {net}.1 {host}\n127.0.0.1 localhost\n"))?;
    Ok(())
}

/// Writes a copy of the client's directory with more properties, given as file, key and value.
pub(super) fn copy_client(from: &Path, to: &Path, properties: &[(&str, &str, &str)]) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = fs::read_to_string(entry.path())?;
        let own = properties.iter().filter(|(file, _, _)| name == *file);
        let own: Vec<_> = own.map(|(_, key, value)| (key.to_string(), value.to_string())).collect();
        let text = if own.is_empty() { text } else { with(&text, &own)? };
        fs::write(to.join(name), text)?;
    }
    Ok(())
}

/// The file with more properties at its end, where they win over earlier ones of the same name.
fn with(text: &str, properties: &[(String, String)]) -> Result<String> {
    let (head, tail) = text.rsplit_once("</configuration>").context("no </configuration>")?;
    let mut all = head.to_owned();
    for (key, value) in properties {
        all.push_str(&format!("  <property><name>{key}</name><value>{value}</value></property>\n"));
    }
    Ok(all + "</configuration>" + tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_property_is_added_before_the_end() {
        let text = with("<configuration>\n</configuration>\n", &[("a".into(), "1".into())])
            .expect("a configuration");
        assert_eq!(
            text,
            "<configuration>\n  <property><name>a</name><value>1</value></property>\n</configuration>\n"
        );
    }
}
