//! Writes the Rust types of .proto files, without protoc. The output is committed, so that building
//! the crates needs neither this program nor its dependencies.
//!
//! ```text
//! cargo run -p heddle-hadoop --example generate_protos -- PROTO_DIR OUT_DIR [OPTION VALUE]…
//! cargo run -p heddle-hadoop --example generate_protos -- shared/hadoop/proto shared/hadoop/src/proto \
//!     --skip-debug .hadoop.common.TokenProto --skip-debug .hadoop.common.CredentialsKVProto \
//!     --skip-debug .hadoop.common.RpcSaslProto
//! ```
//!
//! Each package becomes one file named after it, with `_` for `.`. A crate that uses messages of another crate's package names
//! that crate's proto directory with `--include DIR` and its Rust module with `--extern .pkg=::path`. A message that holds
//! secrets gets no derived `Debug` with `--skip-debug .pkg.Message`; its module then writes one that keeps them.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut includes: Vec<PathBuf> = Vec::new();
    let mut secret: Vec<String> = Vec::new();
    let mut config = prost_build::Config::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--include" => {
                includes.push(arguments.next().ok_or("--include needs a folder")?.into())
            }
            "--extern" => {
                let pair = arguments.next().ok_or("--extern needs .package=::rust::path")?;
                let (package, path) =
                    pair.split_once('=').ok_or("--extern needs .package=::rust::path")?;
                config.extern_path(package, path);
            }
            "--skip-debug" => {
                // Collected, because each call of `skip_debug` forgets the one before.
                secret.push(arguments.next().ok_or("--skip-debug needs .package.Message")?);
            }
            _ => folders.push(argument.into()),
        }
    }
    let [proto_dir, out_dir] = folders.as_slice() else {
        return Err(
            "usage: generate_protos PROTO_DIR OUT_DIR [--include DIR] [--extern .pkg=::path]"
                .into(),
        );
    };

    let mut files = Vec::new();
    for entry in std::fs::read_dir(proto_dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    // Directory order is the file system's; the output must not depend on it.
    files.sort();
    includes.insert(0, proto_dir.clone());

    let descriptors = protox::compile(&files, &includes)?;
    // `bytes` fields share the received frame instead of copying out of it.
    config.bytes(["."]);
    config.skip_debug(&secret);
    let own: Vec<prost_build::Module> = descriptors
        .file
        .iter()
        .filter(|file| proto_dir.join(file.name()).exists())
        .map(|file| prost_build::Module::from_protobuf_package_name(file.package()))
        .collect();
    // Included files are generated too, because messages that contain theirs are derived from both, and dropped.
    let requests = descriptors
        .file
        .into_iter()
        .map(|file| (prost_build::Module::from_protobuf_package_name(file.package()), file))
        .collect();
    for (module, code) in config.generate(requests)? {
        if !own.contains(&module) {
            continue;
        }
        let name = module.parts().collect::<Vec<_>>().join("_");
        let path = out_dir.join(format!("{name}.rs"));
        std::fs::write(&path, code)?;
        println!("{}", path.display());
    }
    Ok(())
}
