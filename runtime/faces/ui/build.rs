//! Reads the files of the page, compresses those that become smaller, and writes the table of them
//! (`$OUT_DIR/assets.rs`). Nothing is downloaded and nothing is compiled: the files in `page/` are
//! sent as they are.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

/// The content types of files, by extension.
const KINDS: [(&str, &str); 6] = [
    ("html", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/plain; charset=utf-8"),
];

fn main() -> io::Result<()> {
    let var = |name: &str| std::env::var(name).map_err(io::Error::other);
    let page = PathBuf::from(var("CARGO_MANIFEST_DIR")?).join("page");
    let out = PathBuf::from(var("OUT_DIR")?);
    println!("cargo::rerun-if-changed=page");
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    list_files(&page, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&page).map_err(io::Error::other)?;
        let name = name.to_str().ok_or_else(|| io::Error::other("a name that is not text"))?;
        let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == ending) else {
            return Err(io::Error::other(format!("{name}: what is a .{ending} file?")));
        };
        let bytes = std::fs::read(file)?;
        let (plain, packed) =
            (out.join(format!("{number}.plain")), out.join(format!("{number}.gz")));
        std::fs::write(&plain, &bytes)?;
        let smaller = gzip_bytes(&bytes)?;
        let gzip = smaller.len() < bytes.len();
        std::fs::write(&packed, if gzip { &smaller } else { &[][..] })?;
        let digest = Sha256::digest(&bytes);
        let tag = digest.iter().take(8).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let _ = writeln!(
            table,
            "Asset {{ name: {name:?}, kind: {kind:?}, tag: {tag:?}, \
             plain: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{number}.plain\")), \
             gzip: {} }},",
            if gzip {
                format!("Some(include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{number}.gz\")))")
            } else {
                "None".to_owned()
            }
        );
    }
    table.push_str("]\n");
    std::fs::write(out.join("assets.rs"), table)
}

/// Collect every plain file below a directory.
fn list_files(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            list_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn gzip_bytes(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes)?;
    packed.finish()
}
