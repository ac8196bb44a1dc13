//! Makes the messages and services of `proto/`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["health", "goplugin", "status", "base", "device", "driver"];
    let files = files.map(|name| format!("{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(descriptors)?;
    Ok(())
}
