//! Compiles the guests: a nested cargo over `examples/`, which is a workspace of its own.
//!
//! ```text
//! examples/{plugins,tasks,hostile}  ──cargo──►  <target>/guests/wasm32-wasip{1,2}/release/*.wasm
//!                                                  │ only when the content differs, by rename
//!                                                  ├─► OUT_DIR/*.wasm        embedded, or read by tests
//!                                                  │     └ precompile ─► OUT_DIR/*.code   embedded
//!                                                  └─► examples/bin/*.wasm   for people; best effort
//! ```
//!
//! The code of the built-in plugins is made with the engine that the agent has, which is a build dependency
//! for it. In a build without optimisation it is the very one that the agent is linked with: see `Cargo.toml`.
//!
//! The nested target directory must not be the outer one: both cargos would wait for its lock.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use ostler_engine::{EngineKind, WasmFormat, ahead};
use ostler_model::digest::Digest;

const WASIP1: &str = "wasm32-wasip1";
const WASIP2: &str = "wasm32-wasip2";

/// A crate of `examples/` and how its product is called.
struct Guest {
    package: &'static str,
    /// File name cargo gives: libraries with `_`, programs as the package.
    built: &'static str,
    target: &'static str,
    /// File name here, without `.wasm`.
    name: &'static str,
}

const fn guest(
    package: &'static str,
    built: &'static str,
    target: &'static str,
    name: &'static str,
) -> Guest {
    Guest { package, built, target, name }
}

impl Guest {
    fn is_builtin(&self) -> bool {
        self.name.starts_with("driver-") || self.name.starts_with("device-")
    }
}

/// Built-in plugins, and the tasks of the example jobs.
const ALWAYS: &[Guest] = &[
    guest("driver-wasm", "driver_wasm", WASIP2, "driver-wasm"),
    guest("driver-exec", "driver_exec", WASIP2, "driver-exec"),
    guest("driver-raw-exec", "driver_raw_exec", WASIP2, "driver-raw-exec"),
    guest("driver-mock", "driver_mock", WASIP2, "driver-mock"),
    guest("device-files", "device_files", WASIP2, "device-files"),
    guest("device-pci", "device_pci", WASIP2, "device-pci"),
    guest("device-usb", "device_usb", WASIP2, "device-usb"),
    guest("device-hwmon", "device_hwmon", WASIP2, "device-hwmon"),
    guest("device-nvidia", "device_nvidia", WASIP2, "device-nvidia"),
    guest("device-mock", "device_mock", WASIP2, "device-mock"),
    guest("hello", "hello", WASIP2, "hello"),
    guest("kv-server", "kv-server", WASIP2, "kv-server"),
    guest("hello-p1", "hello-p1", WASIP1, "hello-p1"),
];

/// Only for tests: feature `fixtures`.
const FIXTURES: &[Guest] = &[
    guest("toolbox", "toolbox", WASIP2, "toolbox"),
    guest("toolbox", "toolbox", WASIP1, "toolbox-p1"),
    guest("hostile-device", "hostile_device", WASIP2, "hostile-device"),
    guest("hostile-burglar", "hostile_burglar", WASIP2, "hostile-burglar"),
    guest("hostile-driver", "hostile_driver", WASIP2, "hostile-driver"),
    guest("hostile-task", "hostile-task", WASIP2, "hostile-task"),
    guest("hostile-task", "hostile-task", WASIP1, "hostile-task-p1"),
    guest("hostile-other-world", "hostile_other_world", WASIP2, "hostile-other-world"),
    guest("hostile-wants-sockets", "hostile_wants_sockets", WASIP2, "hostile-wants-sockets"),
];

/// What the guests are made of, relative to the repository. Cargo looks into directories itself.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "examples/Cargo.toml",
    "examples/Cargo.lock",
    "examples/plugins",
    "examples/tasks",
    "examples/hostile",
    "guest-sdk/Cargo.toml",
    "guest-sdk/src",
    "wit",
    "runtime/plugins/guests/build.rs",
];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let repository = here.ancestors().nth(3).ok_or("the crate is not inside the repository")?;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", repository.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let examples = repository.join("examples");
    let target_dir = nested_target_dir(&out, repository);
    println!("cargo::rustc-env=OSTLER_GUESTS_TARGET={}", target_dir.display());

    add_missing_targets()?;
    let mut wanted: Vec<&Guest> = ALWAYS.iter().collect();
    if env::var_os("CARGO_FEATURE_FIXTURES").is_some() {
        wanted.extend(FIXTURES);
    }
    for target in [WASIP2, WASIP1] {
        let of_target = wanted.iter().filter(|guest| guest.target == target);
        compile(&examples, &target_dir, target, of_target.map(|guest| guest.package))?;
    }
    let bin = examples.join("bin");
    for guest in wanted {
        let file = format!("{}.wasm", guest.name);
        let built = target_dir.join(guest.target).join("release");
        let built = built.join(format!("{}.wasm", guest.built));
        let bytes = fs::read(&built).map_err(|error| cannot("read", &built, &error))?;
        install(&bytes, &out.join(&file))?;
        if guest.is_builtin() {
            precompile(&out.join(&file))?;
        }
        // A read-only checkout has no examples/bin; nothing of the build needs it.
        let _ = install(&bytes, &bin.join(&file));
    }
    Ok(())
}

/// `<target>/guests`, found from `OUT_DIR` = `<target>/<profile>/build/<crate>/out`; shared by all
/// outer profiles, since guests have only one.
fn nested_target_dir(out: &Path, repository: &Path) -> PathBuf {
    let target = out
        .ancestors()
        .find(|dir| dir.file_name() == Some(OsStr::new("build")))
        .and_then(|build| build.parent()?.parent());
    let Some(target) = target else { return out.join("guests") };
    if target.starts_with(repository) {
        return target.join("guests");
    }
    // A build directory outside may serve several checkouts, and cargo tells their guests apart
    // by time alone.
    let mut hasher = DefaultHasher::new();
    repository.hash(&mut hasher);
    target.join(format!("guests-{:016x}", hasher.finish()))
}

fn compile(
    examples: &Path,
    target_dir: &Path,
    target: &str,
    packages: impl Iterator<Item = &'static str>,
) -> Result<(), String> {
    let mut cargo = nested(&variable("CARGO")?);
    cargo.current_dir(examples).args(["build", "--release", "--locked", "--target", target]);
    cargo.arg("--target-dir").arg(target_dir);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let output = run(&mut cargo)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut message = format!("the guests in examples/ do not compile for {target}:\n{said}");
    if said.contains("E0463") {
        let _ = write!(message, "\n{}", how_to_install());
    }
    Err(message)
}

/// Beside the file its code, for any processor of this machine's architecture; nothing in it for another
/// one: agents there compile for themselves.
fn precompile(path: &Path) -> Result<(), String> {
    let own = variable("CARGO_CFG_TARGET_ARCH")? == env::consts::ARCH;
    let failed = |error: &dyn std::fmt::Display| {
        format!("{} cannot be compiled for this machine: {error:#}", path.display())
    };
    let wasm = fs::read(path).map_err(|error| failed(&error))?;
    let (kind, format) = (EngineKind::Plugin, WasmFormat::Component);
    let to = path.with_extension("code");
    // What is there and fits keeps its time, so that nothing is built again for it.
    let there = fs::read(&to).ok();
    let fits = |code: &[u8]| ahead::artefact(code, Digest::compute(&wasm), kind, format).is_some();
    if there.is_some_and(|code| if own { fits(&code) } else { code.is_empty() }) {
        return Ok(());
    }
    let code = if own {
        ahead::make(&wasm, kind, format).map_err(|error| failed(&error))?
    } else {
        Vec::new()
    };
    fs::write(to, code).map_err(|error| failed(&error))
}

/// A command without what the outer build set for its own crates: flags, wrappers and directories
/// of the outer build would break the guests, or make them wait for the outer build's lock.
#[expect(clippy::disallowed_methods, reason = "a build script starts cargo and rustup")]
fn nested(program: &str) -> Command {
    const OURS: &[&str] = &[
        "CARGO_BUILD_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_MANIFEST_",
        "CLIPPY_ARGS",
        "LLVM_PROFILE_FILE",
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
    ];
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if OURS.iter().any(|ours| text.starts_with(ours)) {
            command.env_remove(&name);
        }
    }
    command
}

fn run(command: &mut Command) -> Result<Output, String> {
    let started = command.output();
    started.map_err(|error| format!("cannot run {:?}: {error}", command.get_program()))
}

/// `rust-toolchain.toml` names the targets, but rustup does not install them from there when
/// `RUSTUP_AUTO_INSTALL=0` or when the toolchain is already there without them.
fn add_missing_targets() -> Result<(), String> {
    let missing: Vec<&str> = [WASIP2, WASIP1].into_iter().filter(|t| !has_target(t)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let mut rustup = nested("rustup");
    rustup.args(["target", "add"]).args(&missing);
    let because = match run(&mut rustup) {
        Ok(output) if output.status.success() && missing.iter().all(|t| has_target(t)) => {
            println!(
                "cargo::warning=the Rust targets {names}, which the guests need, were missing; \
                 rustup has added them"
            );
            return Ok(());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(message) => message,
    };
    Err(format!(
        "the guests need the Rust targets {names}, and `rustup target add` could not add them:\n\
         {because}\n{}",
        how_to_install()
    ))
}

/// Whether the compiler has a standard library for `target`.
fn has_target(target: &str) -> bool {
    let mut rustc = nested("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    let Ok(output) = run(&mut rustc) else {
        return false;
    };
    let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success() && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn how_to_install() -> String {
    let toolchain = env::var("RUSTUP_TOOLCHAIN").unwrap_or_else(|_| "stable".to_owned());
    format!(
        "install them with: rustup target add --toolchain {toolchain} {WASIP2} {WASIP1}\n\
         (without rustup: the packages of your distribution with the Rust standard library for \
         these two targets)"
    )
}

/// Write `bytes` to `path` by rename, and only when something changes: an unchanged file keeps
/// its time, so that nothing is compiled again, and a file in use is never written in place.
fn install(bytes: &[u8], path: &Path) -> Result<(), String> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(|error| cannot("create", dir, &error))?;
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    fs::write(&temporary, bytes).map_err(|error| cannot("write", &temporary, &error))?;
    fs::rename(&temporary, path).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}; run this through cargo"))
}
