//! What a cluster is made of.

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// 1 … 4, default 1.
    pub datanodes: u8,
    /// 1 or 2, default 1. Two are a pair behind the name service `heddle`, with a shared directory of edits and
    /// without ZooKeeper: `Cluster::fail_over_to` selects the active one, at first `nn1`.
    pub namenodes: u8,
    /// 0 … 4, default 3. Each has 4096 MiB and 8 vcores.
    pub nodemanagers: u8,
    /// 0 … 2, default 1. Two are a pair without ZooKeeper: `Cluster::activate` selects the active one, at first `rm1`.
    /// None, and no NodeManagers, is a cluster of HDFS alone.
    pub resourcemanagers: u8,
    /// Resources of type `yarn.io/gpu` that each NodeManager claims to have, default 0: then the type is unknown.
    pub gpus_per_node: u32,
    /// After how long a silent ApplicationMaster is given up; milliseconds, default 60000: on a busy machine it may be kept
    /// waiting for many seconds.
    pub am_expiry_ms: u32,
    /// After how long a silent NodeManager is lost; milliseconds, default 10000.
    pub nm_expiry_ms: u32,
    /// Attempts that an application has at most, default 4.
    pub am_max_attempts: u32,
    /// How often the key of AMRM tokens rolls; seconds, more than three times `am_expiry_ms`. Default: daily.
    pub amrm_token_roll_s: Option<u32>,
    /// Whether the cluster requires Kerberos, with a realm of its own (`Cluster::realm`). Default false.
    pub kerberos: bool,
    /// More properties: file (`yarn-site.xml`, …; `client-yarn-site.xml` for the client's), key, value. In values `@DIR@`
    /// is the cluster's directory and `@NET@` its network.
    pub properties: Vec<(String, String, String)>,
}

impl Options {
    /// HDFS alone, with three DataNodes: files have three copies.
    #[must_use]
    pub fn hdfs() -> Self {
        Self { datanodes: 3, nodemanagers: 0, resourcemanagers: 0, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            datanodes: 1,
            namenodes: 1,
            nodemanagers: 3,
            resourcemanagers: 1,
            gpus_per_node: 0,
            am_expiry_ms: 60_000,
            nm_expiry_ms: 10_000,
            am_max_attempts: 4,
            amrm_token_roll_s: None,
            kerberos: false,
            properties: Vec::new(),
        }
    }
}
