//! Programs nobody here wrote, compiled from their published sources on first use and kept beside the build.
//!
//! ```text
//! Program ─ there? ─ yes ─► its path
//!              │ no
//!              ▼ one at a time, over all test processes
//!           cargo install --target … ─► <target>/tmp/real-programs/<target>/<name>-<version>/bin/
//! ```
//! Without network, or beyond the time for all of them, the reason is given instead and the test
//! that wanted the program is skipped aloud.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use ostler_model::clock::Stopwatch;

pub const WASIP1: &str = "wasm32-wasip1";
pub const WASIP2: &str = "wasm32-wasip2";
const NATIVE: &str = "native";

/// For all programs of one test run together. Unloaded, two cores need two minutes for those that
/// are always built and four for all.
const BUILDING_MAX: Duration = Duration::from_secs(480);

/// A published program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    name: &'static str,
    version: &'static str,
    binary: &'static str,
    target: &'static str,
    /// Absent: the program's default.
    features: Option<&'static str>,
}

const fn program(
    name: &'static str,
    version: &'static str,
    binary: &'static str,
    target: &'static str,
) -> Program {
    Program { name, version, binary, target, features: None }
}

pub const RIPGREP: Program = program("ripgrep", "15.2.0", "rg", WASIP2);
/// By default it has an allocator in C.
pub const JAQ: Program = Program { features: Some(""), ..program("jaq", "1.6.0", "jaq", WASIP1) };
pub const SD: Program = program("sd", "1.0.0", "sd", WASIP1);
pub const HEXYL: Program = program("hexyl", "0.16.0", "hexyl", WASIP1);
pub const HTMLQ: Program = program("htmlq", "0.4.0", "htmlq", WASIP2);
pub const COREUTILS: Program = Program {
    features: Some("cat,cksum,cut,head,sort,tr,uniq,wc"),
    ..program("coreutils", "0.12.0", "coreutils", WASIP2)
};

/// Are those built that take long? `OSTLER_REAL_PROGRAMS=all` asks for it.
pub fn all() -> bool {
    std::env::var("OSTLER_REAL_PROGRAMS").is_ok_and(|which| which == "all")
}

impl Program {
    /// The same program for this machine.
    pub const fn native(self) -> Self {
        Self { target: NATIVE, ..self }
    }

    /// Where it is, built if need be; else why not.
    pub fn path(self) -> Result<PathBuf, String> {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-programs");
        let root = tmp.join(self.target).join(format!("{}-{}", self.name, self.version));
        let extension = if self.target == NATIVE { "" } else { "wasm" };
        let file = root.join("bin").join(self.binary).with_extension(extension);
        if file.exists() {
            return Ok(file);
        }
        std::fs::create_dir_all(&tmp).unwrap();
        let turn = File::create(tmp.join("lock")).unwrap();
        turn.lock().unwrap();
        if !file.exists() {
            self.build(&tmp, &root)?;
        }
        Ok(file)
    }

    fn build(self, tmp: &Path, root: &Path) -> Result<(), String> {
        static BEGUN: OnceLock<Stopwatch> = OnceLock::new();
        let Self { name, version, target, .. } = self;
        let log = tmp.join(format!("{name}-{target}.log"));
        let said = File::create(&log).unwrap();
        let mut cargo = cargo();
        cargo.args(["install", "--quiet", "--locked", "--no-track", name, "--version", version]);
        cargo.arg("--root").arg(root).arg("--target-dir").arg(tmp.join("target"));
        if target != NATIVE {
            cargo.args(["--target", target]);
        }
        if let Some(features) = self.features {
            cargo.args(["--no-default-features", "--features", features]);
        }
        // Not in the repository: its cargo configuration is not theirs.
        cargo.current_dir(tmp).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let mut child = cargo.spawn().map_err(|error| format!("cargo does not start: {error}"))?;
        let begun = BEGUN.get_or_init(Stopwatch::start);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let first = text.lines().find(|line| line.contains("error")).unwrap_or(&text);
                return if status.success() {
                    Ok(())
                } else {
                    Err(format!(
                        "{name} {version} for {target} was not built ({first}); see {}",
                        log.display()
                    ))
                };
            }
            if begun.elapsed() > BUILDING_MAX {
                // Cargo ends its compilers on this signal.
                let pid = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
                let _ = child.wait();
                return Err(format!("building real programs took more than {BUILDING_MAX:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What the build of this test set for itself, and no other build should see.
pub fn set_by_cargo() -> impl Iterator<Item = OsString> {
    const OURS: &[&str] = &[
        "CARGO_BUILD_",
        "CARGO_CFG_",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_FEATURE_",
        "CARGO_INCREMENTAL",
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CLIPPY_ARGS",
        "LLVM_PROFILE_FILE",
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
    ];
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| OURS.iter().any(|ours| name.to_string_lossy().starts_with(ours)))
}

/// Cargo with a quick profile.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for name in set_by_cargo() {
        cargo.env_remove(name);
    }
    cargo
        .env("CARGO_NET_RETRY", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "false")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    cargo
}
