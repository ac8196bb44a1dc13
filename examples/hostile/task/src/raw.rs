//! What std does not do with the files of WASI 0.2: streams that are held and not read, and written behind
//! a truncation.

use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, OpenFlags, PathFlags};
use wasip2::io::streams::OutputStream;

/// More of anything is not tried: whoever counts nothing has used enough by then.
const ENOUGH: usize = 4_000;
const MEBIBYTE: usize = 1 << 20;

fn directory(path: &str) -> Option<Descriptor> {
    get_directories().into_iter().find(|(_, name)| name == path).map(|(dir, _)| dir)
}

/// Begins to list a directory again and again.
pub fn hold_listings(path: &str) {
    let Some(dir) = directory(path) else { return println!("no {path}") };
    let mut held = Vec::new();
    let end = loop {
        match dir.read_directory() {
            Ok(_) if held.len() == ENOUGH => break "enough".to_owned(),
            Ok(stream) => held.push(stream),
            Err(error) => break error.name().to_owned(),
        }
    };
    println!("{} held, then {end}", held.len());
}

/// Reads a piece of a file through many streams and takes one byte of each.
pub fn hold_streams(path: &str) {
    let Some(dir) = directory(path) else { return println!("no {path}") };
    let read = DescriptorFlags::READ;
    let file = match dir.open_at(PathFlags::empty(), "large", OpenFlags::empty(), read) {
        Ok(file) => file,
        Err(error) => return println!("open: {}", error.name()),
    };
    let mut held = Vec::new();
    while held.len() < 2_000 {
        let Ok(stream) = file.read_via_stream(0) else { break };
        // Wasmtime-wasi begins to read 64 KiB here, and has them after it was waited for.
        let _nothing_yet = stream.read(MEBIBYTE as u64);
        stream.subscribe().block();
        if stream.read(1).is_err() {
            break;
        }
        held.push(stream);
    }
    println!("{} held", held.len());
}

fn write(stream: &OutputStream, mebibytes: usize) -> bool {
    let block = [b'x'; 4_096];
    (0..mebibytes * MEBIBYTE / block.len()).all(|_| stream.blocking_write_and_flush(&block).is_ok())
}

/// Fills files through streams that were opened before the file was made empty again.
pub fn truncated(path: &str) {
    let Some(dir) = directory(path) else { return println!("no {path}") };
    let how = OpenFlags::CREATE;
    let mut written = 0;
    for number in 0..8 {
        let flags = DescriptorFlags::READ | DescriptorFlags::WRITE;
        let name = format!("truncated{number}");
        let Ok(file) = dir.open_at(PathFlags::empty(), &name, how, flags) else { break };
        let Ok(first) = file.write_via_stream(0) else { break };
        let filled = write(&first, 6);
        let Ok(second) = file.write_via_stream(0) else { break };
        if !filled || file.set_size(0).is_err() || !write(&second, 6) {
            break;
        }
        written += 6;
    }
    println!("{written} MiB");
}
