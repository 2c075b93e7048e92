//! The machine is free of sockets, threads and clocks because nothing but the shell may name them.

use std::fs;
use std::path::Path;

#[test]
fn only_the_shell_names_the_runtime_or_a_socket() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for folder in [src.clone(), src.join("machine")] {
        for entry in fs::read_dir(&folder).expect("the crate's own sources") {
            let path = entry.expect("a readable folder").path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source file");
            for word in [
                "tokio",
                "socket2",
                "crossbeam",
                "std::thread",
                "std::io",
                "std::fs",
                "TcpStream",
                "Instant",
            ] {
                assert!(!text.contains(word), "{} names {word}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "the sources have moved");
}
