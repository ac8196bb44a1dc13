//! `precompile ARCH FILE.wasm…`: beside each built-in plugin its code, as `FILE.code`. Empty files where that
//! is not the architecture of this machine: agents there compile for themselves. For the build script of
//! `ostler-guests`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ostler_engine::{EngineKind, Format, ahead};
use ostler_model::digest::Digest;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let own = args.next().is_some_and(|arch| arch == std::env::consts::ARCH);
    for path in args.map(PathBuf::from) {
        if let Err(message) = precompile(&path, own) {
            eprintln!("{}: {message}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn precompile(path: &Path, own: bool) -> Result<(), String> {
    let wasm = std::fs::read(path).map_err(|error| error.to_string())?;
    let (kind, format) = (EngineKind::Plugin, Format::Component);
    let to = path.with_extension("code");
    // What is there and fits keeps its time, so that nothing is built again for it.
    let there = std::fs::read(&to).ok();
    let fits = |code: &[u8]| ahead::artefact(code, Digest::of(&wasm), kind, format).is_some();
    if there.is_some_and(|code| if own { fits(&code) } else { code.is_empty() }) {
        return Ok(());
    }
    let code = match own {
        true => ahead::make(&wasm, kind, format).map_err(|error| format!("{error:#}"))?,
        false => Vec::new(),
    };
    std::fs::write(to, code).map_err(|error| error.to_string())
}
