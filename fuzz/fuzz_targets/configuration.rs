//! Configuration files from arbitrary bytes: the parser returns properties or an error.
#![no_main]

use std::path::Path;
use std::time::Duration;

use heddle_hadoop::configuration::{
    Configuration, Environment, FileSource, NameService, RmService, TimeUnit,
};
use libfuzzer_sys::fuzz_target;

/// The fuzzed bytes, split at the first zero byte into a file and another file that it may include.
struct TwoFiles<'a>(&'a [u8], &'a [u8]);

impl FileSource for TwoFiles<'_> {
    fn read(&self, path: &Path) -> std::io::Result<Option<Vec<u8>>> {
        Ok(match path.to_str() {
            Some("/a.xml") => Some(self.0.to_vec()),
            Some("/b.xml") => Some(self.1.to_vec()),
            _ => None,
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let split = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (first, second) = bytes.split_at(split);
    let environment =
        Environment::empty().with_variable("SET", "value").with_property("user.name", "u");
    let mut configuration = Configuration::with_defaults(environment);
    if configuration.add_file_of(&TwoFiles(first, second), Path::new("/a.xml")).is_err() {
        return;
    }
    let keys: Vec<String> = configuration.keys().map(str::to_owned).collect();
    for key in keys {
        let _ = configuration.get(&key);
        let _ = configuration.boolean(&key, false);
        let _ = configuration.integer(&key, 0);
        let _ = configuration.decimal(&key, 0.0);
        let _ = configuration.size(&key, 0);
        let _ = configuration.list(&key);
        let _ = configuration.duration(&key, TimeUnit::Millis, Duration::ZERO);
        let _ = configuration.address(&key, Some(1));
        assert!(configuration.explain(&key).is_some());
    }
    let _ = RmService::Client.addresses(&configuration);
    let _ = NameService::of_default(&configuration);
});
