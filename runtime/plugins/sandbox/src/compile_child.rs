//! The compile child, and the exit codes by which it tells its parent which failure it was.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Resource, Rlimit, setrlimit};
use wasmtime::WasmFeatures;

use super::{ChildArgs, CompileError, signal_of};
use ostler_engine::{EngineKind, WasmFormat, compiler_engine, forbidden_features};
use ostler_model::limits::{self, CompileLimits};

const USAGE: u8 = 64;
const INVALID: u8 = 10;
const UNSUPPORTED: u8 = 11;
const FAILED: u8 = 12;

/// What the exit of a child means to the parent.
pub(super) fn outcome(
    status: ExitStatus,
    stderr: String,
    kind: EngineKind,
    within: &CompileLimits,
    artefact_bytes: u64,
) -> Result<(), CompileError> {
    if status.success() {
        return Ok(());
    }
    if let Some(signal) = signal_of(status) {
        return Err(match signal {
            libc::SIGXCPU => CompileError::CompileCpu { kind, limit: within.cpu_max },
            libc::SIGXFSZ => CompileError::ArtefactTooLarge { limit: artefact_bytes },
            // The allocator gives up; so does a stack that is too deep.
            libc::SIGABRT if !stderr.contains("overflowed its stack") => {
                let limit = within.address_space_bytes_max;
                CompileError::CompileMemory { kind, limit, stderr }
            }
            signal => CompileError::CompileKilled { signal, stderr },
        });
    }
    Err(match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(INVALID) => CompileError::Invalid { message: stderr },
        Some(UNSUPPORTED) => CompileError::Unsupported { message: stderr },
        _ => CompileError::CompileFailed { status, stderr },
    })
}

/// Body of `ostler __compile …`: limit this process, read wasm from standard input, write the
/// code into an existing file. `args` are those after `__compile`:
/// `--kind plugin|task|dense --format component|module --output FILE`, and before the last, where they
/// differ from the defaults, `--file-bytes N --memory-bytes N --cpu-seconds N --artefact-bytes N`.
///
/// Failures go to standard error in one line; the exit code tells the parent which kind it is.
pub fn compile_child_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(run(args))
}

/// [`compile_child_main`], with the exit code as a number.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let Some(args) = ChildArgs::parse(args) else {
        return fail(
            USAGE,
            "usage: __compile --kind plugin|task|dense --format component|module --output FILE",
        );
    };
    if let Err(error) = limit_this_process(&args.within, args.artefact_bytes) {
        return fail(FAILED, &format!("cannot limit this process: {error}"));
    }
    match compile(&args) {
        Ok(()) => 0,
        Err((code, message)) => fail(code, &message),
    }
}

fn fail(code: u8, message: &str) -> u8 {
    let _ = writeln!(io::stderr(), "{message}");
    code
}

/// Limit this process, before it reads the first untrusted byte.
fn limit_this_process(within: &CompileLimits, artefact_bytes: u64) -> io::Result<()> {
    let (seconds, bytes) = (within.cpu_max.as_secs(), within.address_space_bytes_max);
    for (resource, soft, hard) in [
        (Resource::As, bytes, bytes),
        (Resource::Cpu, seconds, seconds.saturating_add(1)),
        (Resource::Nofile, limits::COMPILE_OPEN_FILES_MAX, limits::COMPILE_OPEN_FILES_MAX),
        // A dump would hold the whole address space.
        (Resource::Core, 0, 0),
        (Resource::Fsize, artefact_bytes, artefact_bytes),
    ] {
        // An existing hard limit below ours stays.
        let hard = rustix::process::getrlimit(resource).maximum.map_or(hard, |now| now.min(hard));
        setrlimit(resource, Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) })?;
    }
    rustix::thread::set_no_new_privs(true)?;
    // Tasks that already run go first.
    let _ = rustix::process::setpriority_process(None, limits::COMPILE_NICE);
    Ok(())
}

fn compile(args: &ChildArgs) -> Result<(), (u8, String)> {
    let failed = |what: &str, error: &dyn std::fmt::Display| (FAILED, format!("{what}: {error}"));
    let mut wasm = Vec::new();
    let bound = args.within.file_bytes_max.saturating_add(1);
    io::stdin()
        .lock()
        .take(bound)
        .read_to_end(&mut wasm)
        .map_err(|error| failed("cannot read standard input", &error))?;
    let code = precompile(&wasm, args.kind, args.format)?;
    // The parent made the file, so that it also removes it whatever becomes of this process.
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&args.output)
        .map_err(|error| failed("cannot open the output file", &error))?;
    // The parent seals the file: a process that reads untrusted bytes must not have the secret.
    file.write_all(&code).map_err(|error| failed("cannot write the output file", &error))
}

fn precompile(wasm: &[u8], kind: EngineKind, format: WasmFormat) -> Result<Vec<u8>, (u8, String)> {
    let engine = compiler_engine(kind).map_err(|error| (FAILED, format!("{error:#}")))?;
    let code = ostler_engine::precompile(&engine, wasm, format);
    code.map_err(|error| (failure_of(wasm), format!("{error:#}")))
}

/// Which failure it was. This is found by validating again, because Wasmtime's errors do not tell.
fn failure_of(wasm: &[u8]) -> u8 {
    let everything = WasmFeatures::all();
    if !is_valid(wasm, everything) {
        INVALID
    } else if !is_valid(wasm, everything.difference(forbidden_features())) {
        UNSUPPORTED
    } else {
        FAILED
    }
}

fn is_valid(wasm: &[u8], features: WasmFeatures) -> bool {
    wasmparser::Validator::new_with_features(features).validate_all(wasm).is_ok()
}
