//! Every key of a job file: its default, its meaning, and whether its function is there yet.
//!
//! The list is the reference that people read (`heddle config template`) and what reading goes by:
//! a key that is not here is unknown, and a default is taken from here and parsed like a value that
//! somebody wrote. So documentation, defaults and types cannot part.

/// A section of the job file.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// `data`; empty for the top.
    pub name: &'static str,
    /// What the section is about.
    pub doc: &'static str,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.key`, or the key alone at the top.
    pub path: &'static str,
    /// What it means, its unit and bounds.
    pub doc: &'static str,
    /// What holds when it is not given.
    pub fallback: Fallback,
}

/// What holds when a key is not given.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// Nothing: it must be given. With an example, as TOML.
    Required(&'static str),
    /// This value, as TOML.
    Value(&'static str),
    /// Nothing, and absent is fine. With an example, as TOML.
    Absent(&'static str),
    /// The function is not there yet. Only this value, as TOML, is taken.
    NotYet(&'static str),
}

/// The sections in the order in which people meet them.
pub const GROUPS: &[Group] = &[
    Group { name: "", doc: "" },
    Group { name: "data", doc: "What is read." },
    Group { name: "model", doc: "What is trained." },
    Group { name: "training", doc: "How it is trained." },
    Group { name: "pservers", doc: "The processes that hold the parameters." },
    Group { name: "trainers", doc: "The processes that read data and compute gradients." },
    Group { name: "checkpoint", doc: "When and where the state is saved." },
    Group { name: "output", doc: "What comes out." },
    Group { name: "am", doc: "The ApplicationMaster, which runs the job." },
    Group { name: "network", doc: "Where processes listen." },
    Group { name: "run", doc: "Runs on this machine." },
    Group { name: "submit", doc: "Submission to a cluster." },
    Group { name: "yarn", doc: "What YARN is asked for; a run on this machine ignores it." },
];

const fn key(path: &'static str, fallback: Fallback, doc: &'static str) -> Key {
    Key { path, doc, fallback }
}

/// Every key, section by section.
pub const KEYS: &[Key] = &[
    key(
        "name",
        Fallback::Required("\"ctr\""),
        "Name of the job: letters, digits, \"-\", \"_\" and \".\". Becomes part of folder names.",
    ),
    key(
        "data.train",
        Fallback::Required("\"data/train-*.libsvm\""),
        "Training data: a file, a glob, or a list of these. Plain or gzip (.gz; such a file is one task). A path without scheme is relative to the job file (in --set to the working directory) and local.",
    ),
    key(
        "data.test",
        Fallback::Value("\"\""),
        "Test data, evaluated after each pass. Empty: no evaluation.",
    ),
    key(
        "data.format",
        Fallback::Value("\"libsvm\""),
        "\"libsvm\" (label index:value …) or \"dummy\" (label index index …, every value being 1).",
    ),
    key(
        "data.index-base",
        Fallback::Value("\"auto\""),
        "The lowest feature index in the files: 0, 1 or \"auto\" (libsvm 1, dummy 0).",
    ),
    key("data.passes", Fallback::Value("1"), "Times over the training data, at least 1."),
    key(
        "data.task-size",
        Fallback::Value("\"auto\""),
        "Bytes of a task, the piece of input that a trainer takes at a time: a size, or \"auto\" (at least 4 tasks per lane or trainer, at most 32MiB each).",
    ),
    key(
        "data.shuffle",
        Fallback::Value("true"),
        "Whether each pass takes the tasks in an order of its own, drawn from the seed.",
    ),
    key(
        "data.bad-records",
        Fallback::Value("\"fail\""),
        "Records that cannot be read: \"fail\", \"skip:N\" (leave out up to N a pass) or \"quarantine\" (leave out and write down).",
    ),
    key(
        "model.algorithm",
        Fallback::Value("\"logistic-regression\""),
        "\"logistic-regression\" (labels -1/+1 or 0/1, with a bias), or \"custom\" (the program of trainers.command on the tables of [[model.table]]).",
    ),
    key(
        "model.features",
        Fallback::Absent("1000000"),
        "Number of features; an index above it is a bad record. Needed unless the algorithm is \"custom\".",
    ),
    key(
        "model.l2",
        Fallback::Value("0.0"),
        "Strength of the objective's l2 term; the bias is free of it.",
    ),
    key(
        "model.standardise",
        Fallback::Value("false"),
        "Bring every column to mean 0 and variance 1 first. Two more times over the training data.",
    ),
    key(
        "model.optimizer",
        Fallback::Value("{ kind = \"ftrl\", alpha = 0.1, beta = 1.0, l1 = 0.0, l2 = 0.0 }"),
        "{ kind = \"sgd\", rate = … } or { kind = \"ftrl\", alpha = …, beta = …, l1 = …, l2 = … }; what is left out of ftrl is as in the default. (momentum, adagrad, adam: not available yet.)",
    ),
    key(
        "model.init",
        Fallback::NotYet("\"\""),
        "Start from the values of another job's checkpoint.",
    ),
    key(
        "model.table",
        Fallback::Absent(
            "[{ name = \"counts\", rows = 1000, cols = 1, optimizer = { kind = \"sgd\", rate = 1.0 } }]",
        ),
        "Tables of a \"custom\" algorithm, one [[model.table]] each: name, rows, cols (1), kind (\"dense\"; \"sparse\" is not available yet), optimizer (model.optimizer; here also \"add\", which adds pushes as they are), l2 (0).",
    ),
    key(
        "training.consistency",
        Fallback::Value("\"bsp\""),
        "\"bsp\": all lanes compute each step from the same values; repeatable to the byte. \"asp\": nobody waits. (\"ssp\": not available yet.)",
    ),
    key(
        "training.staleness",
        Fallback::NotYet("0"),
        "ssp: how many steps a trainer may be ahead of the slowest.",
    ),
    key(
        "training.lanes",
        Fallback::Value("4"),
        "bsp: number of logical workers, whatever the trainers. The result depends on it, not on trainers.*.",
    ),
    key(
        "training.batch",
        Fallback::Value("256"),
        "Rows of a minibatch. In bsp each lane has one a step: the effective batch is lanes × batch.",
    ),
    key("training.seed", Fallback::Value("42"), "Of everything that is drawn by lot; at least 0."),
    key(
        "training.nan",
        Fallback::Value("\"fail\""),
        "A gradient that holds NaN or an infinity: \"fail\", or \"skip\" it.",
    ),
    key(
        "training.throttle",
        Fallback::NotYet("\"\""),
        "Slow trainers down to so many rows a second.",
    ),
    key(
        "training.early-stop",
        Fallback::Value("0"),
        "End after so many passes without a better log-loss on the test data; 0: never.",
    ),
    key("pservers.count", Fallback::Value("2"), "How many."),
    key(
        "pservers.memory",
        Fallback::Value("\"512MiB\""),
        "Of each. Tables, optimizer state and snapshot copies must fit.",
    ),
    key("pservers.vcores", Fallback::Value("1"), "Of each: its data threads."),
    key(
        "pservers.shards",
        Fallback::Value("8"),
        "Slices of the model, at least count × vcores; several times that spreads better. Fixed for the job.",
    ),
    key("pservers.spares", Fallback::NotYet("0"), "Warm pservers without shards."),
    key("pservers.replicas", Fallback::NotYet("0"), "Copies of each shard on other pservers."),
    key("trainers.min", Fallback::Value("1"), "Training starts when so many run."),
    key("trainers.max", Fallback::Value("2"), "Never more than this."),
    key("trainers.memory", Fallback::Value("\"512MiB\""), "Of each."),
    key("trainers.vcores", Fallback::Value("1"), "Of each."),
    key(
        "trainers.resources",
        Fallback::Value("{}"),
        "Other resources of YARN, of each, such as { \"yarn.io/gpu\" = 1 }. A run on this machine ignores them.",
    ),
    key(
        "trainers.command",
        Fallback::Value("[]"),
        "A program and its arguments instead of the built-in trainer. A program name with \"/\" is relative to the job file.",
    ),
    key(
        "checkpoint.dir",
        Fallback::Value("\"\""),
        "Folder of the job's checkpoints. Empty: ./out/<name>-<run>/checkpoints, on YARN heddle/<name>-<run>/checkpoints in your home. Never put anything else there.",
    ),
    key(
        "checkpoint.every",
        Fallback::Value("\"10min\""),
        "How often: a duration, \"2 passes\" or \"500 steps\". There is one before the first step and one at the end besides.",
    ),
    key("checkpoint.keep", Fallback::Value("3"), "How many complete ones stay, at least 2."),
    key(
        "checkpoint.timeout",
        Fallback::Value("\"5min\""),
        "One that takes longer is given up; training goes on.",
    ),
    key(
        "checkpoint.on-corrupt",
        Fallback::Value("\"previous\""),
        "A damaged checkpoint: \"previous\" goes on from the one before, loudly; \"fail\" stops.",
    ),
    key(
        "checkpoint.memory",
        Fallback::Value("\"25%\""),
        "How much of a pserver's memory the copies of a snapshot may take: a percentage or a size.",
    ),
    key(
        "checkpoint.bandwidth",
        Fallback::Value("\"\""),
        "How fast saving may write, all pservers together, such as \"100MiB/s\". Empty: no limit.",
    ),
    key(
        "output.model",
        Fallback::Value("\"\""),
        "Folder of the model. Empty: ./out/<name>-<run>/model, on YARN heddle/<name>-<run>/model in your home.",
    ),
    key(
        "output.formats",
        Fallback::Value("[\"safetensors\", \"text\"]"),
        "\"safetensors\" and \"text\" (lines of index and weight, for linear models; left out for \"custom\" unless asked for).",
    ),
    key(
        "output.permissions",
        Fallback::Value("\"auto\""),
        "Of the model's files, octal, such as \"0640\" (their folder adds x for whoever may read). \"auto\": by the umask, on HDFS by fs.permissions.umask-mode.",
    ),
    key("am.memory", Fallback::Value("\"256MiB\""), "Its memory."),
    key("am.vcores", Fallback::Value("1"), "Its vcores."),
    key(
        "network.ports",
        Fallback::Value("\"\""),
        "Ports that processes may listen on, such as \"7000-7100\". Empty: any free one.",
    ),
    key(
        "run.work-dir",
        Fallback::Value("\"\""),
        "Folder of run directories (logs, sockets, small state). Empty: heddle in the XDG state directory.",
    ),
    key(
        "run.orphan-timeout",
        Fallback::Value("\"auto\""),
        "A process that hears of no ApplicationMaster for so long stops: a duration, or \"auto\" (120s).",
    ),
    key(
        "submit.upload-limit",
        Fallback::Value("\"64MiB\""),
        "Most local data that submit uploads for the job; more belongs on HDFS before.",
    ),
    key(
        "submit.binary",
        Fallback::Value("\"\""),
        "The program that containers run, such as the released one, which old systems can load. Empty: the one that submits.",
    ),
    key("yarn.queue", Fallback::Value("\"default\""), "Queue, by its name or its path."),
    key("yarn.priority", Fallback::Value("0"), "Priority within the queue; higher is earlier."),
    key(
        "yarn.tags",
        Fallback::Value("[]"),
        "Tags of the application, at most 10, each at most 100 ASCII characters; YARN keeps them in lower case.",
    ),
    key(
        "yarn.node-label",
        Fallback::Value("\"\""),
        "Only on nodes of this label. Empty: the queue's default.",
    ),
    key(
        "yarn.max-attempts",
        Fallback::Value("2"),
        "How often the ApplicationMaster may be started; the cluster may allow fewer. Training goes on while it is started again.",
    ),
    key(
        "yarn.allocation-timeout",
        Fallback::Value("\"10min\""),
        "How long to wait for all pservers and trainers.min trainers; then the job ends with exit code 4 and gives back what it got.",
    ),
    key(
        "yarn.replacement-timeout",
        Fallback::Value("\"30s\""),
        "How long to wait for the container that replaces a lost pserver's; then the others take over its shards where they fit into pservers.memory, until it comes.",
    ),
    key(
        "yarn.memory-overhead",
        Fallback::Value("\"10%\""),
        "Memory asked for beyond what a process may use: a percentage of that, or a size.",
    ),
    key(
        "yarn.memory-retry",
        Fallback::Value("{ factor = 1.5, times = 1 }"),
        "A container that was ended for its memory is asked for again with factor (1 to 10) times as much, so many times (at most 10; 0: never).",
    ),
    key(
        "yarn.view-acl",
        Fallback::Value("\"\""),
        "Who may look besides you: \"user,user group,group\" or \"*\".",
    ),
    key("yarn.modify-acl", Fallback::Value("\"\""), "Who may kill besides you, likewise."),
    key(
        "yarn.files",
        Fallback::Value("[]"),
        "Files that containers find in their work directory: \"path\", or \"path#name\" for another name there. Local ones are uploaded.",
    ),
    key(
        "yarn.archives",
        Fallback::Value("[]"),
        "Archives (.zip, .tar, .tar.gz, .tgz, .jar) that containers find unpacked in a folder of that name: \"path\" or \"path#name\".",
    ),
    key(
        "yarn.env",
        Fallback::Value("{}"),
        "Environment variables of containers. Not for secrets: others on the cluster can read them.",
    ),
];

/// The key of that path.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The key that an unknown one probably means: close by its whole path or by its last part.
#[must_use]
pub fn nearest(path: &str) -> Option<&'static str> {
    let last = |path: &'static str| path.rsplit('.').next().unwrap_or(path);
    let typed = path.rsplit('.').next().unwrap_or(path);
    let closeness = |key: &Key| {
        let whole = strsim::damerau_levenshtein(path, key.path);
        // The right name in the wrong section counts as two slips.
        let part = strsim::damerau_levenshtein(typed, last(key.path)) + 2;
        whole.min(part)
    };
    let best = KEYS.iter().min_by_key(|key| closeness(key))?;
    // Beyond a third of the letters it is another word.
    (closeness(best) <= path.chars().count() / 3 + 1).then_some(best.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_in_a_section_that_exists_and_none_is_listed_twice() {
        for (n, key) in KEYS.iter().enumerate() {
            let section = key.path.split_once('.').map_or("", |(section, _)| section);
            assert!(GROUPS.iter().any(|group| group.name == section), "{}", key.path);
            assert!(KEYS[..n].iter().all(|before| before.path != key.path), "{}", key.path);
        }
    }

    #[test]
    fn slips_lead_to_the_key_that_was_meant() {
        assert_eq!(nearest("trainers.mx"), Some("trainers.max"));
        assert_eq!(nearest("trainer.max"), Some("trainers.max"));
        assert_eq!(nearest("passes"), Some("data.passes"));
        assert_eq!(nearest("model.optimiser"), Some("model.optimizer"));
        assert_eq!(nearest("model.xyzzy-plugh"), None);
    }
}
