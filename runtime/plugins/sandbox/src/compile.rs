//! Compiling untrusted bytes in a child process with limits of its own.
//!
//! Nine hostile megabytes cost the compiler 19 s and 5.3 GB, so it never runs in the agent:
//!
//! ```text
//!  agent                                     child: this program with `__compile`
//!    empty file 0600 in the cache directory
//!    wasm ──────── standard input ─────────►  limits on itself, read, compile
//!    wall deadline, kill on drop              artefact ─► that file
//!    no processor time for long: it hangs,
//!    killed and replaced
//!    exit status, standard error ◄──────────  exit code: which failure
//!    seal, rename (see the cache)
//! ```

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use ostler_engine::{EngineKind, WasmFormat};
use ostler_model::limits::CompileLimits;
use ostler_model::printable::printable_end;
use ostler_model::{clock, limits};

#[path = "compile_child.rs"]
pub(super) mod child;

pub use child::compile_child_main;

/// Why bytes did not become code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Not WebAssembly at all.
    #[error("the file is not WebAssembly: {hint}")]
    NotWasm {
        /// What the file seems to be.
        hint: &'static str,
    },
    /// The file is a core module where a component is needed.
    #[error(
        "the file is a core module, not a component; build it for the target wasm32-wasip2, or \
         wrap it with `wasm-tools component new`"
    )]
    CoreModuleNotComponent,
    /// The file is a component where a core module is needed.
    #[error("the file is a component, not a core module; build it for the target wasm32-wasip1")]
    ComponentNotModule,
    /// The file has more bytes than are accepted.
    #[error("the file has {size} bytes, more than the limit of {max}")]
    TooLarge {
        /// Size of the file, bytes.
        size: u64,
        /// Most bytes that are accepted.
        max: u64,
    },
    /// The file has more functions than are accepted.
    #[error("the file has at least {found} functions, more than the limit of {max}")]
    TooManyFunctions {
        /// How many functions were found until counting stopped.
        found: u32,
        /// Most functions that are accepted.
        max: u32,
    },
    /// The file is malformed or invalid WebAssembly.
    #[error("the file is not valid WebAssembly: {message}")]
    Invalid {
        /// What is wrong, and where.
        message: String,
    },
    /// The file is valid, but uses a WebAssembly feature that guests may not use.
    #[error(
        "the file uses a WebAssembly feature that is not allowed here: {message}; build it without \
         that feature (garbage collection, threads, exceptions, 64-bit memory, async and the like)"
    )]
    Unsupported {
        /// Which feature, in the validator's words.
        message: String,
    },
    /// The child reported another failure.
    #[error("the compiler failed ({status}): {stderr}")]
    CompileFailed {
        /// Exit status of the child.
        status: ExitStatus,
        /// The end of the child's standard error, bounded.
        stderr: String,
    },
    /// The child did not end in time.
    #[error("compiling took over {limit:?}; the node is overloaded, or {}", more(*kind, "compile_wall", &doubled(*limit)))]
    CompileTimedOut {
        /// The engine that the code was compiled for.
        kind: EngineKind,
        /// Most time that one compilation may take.
        limit: Duration,
    },
    /// Each compile child that was tried hung.
    #[error(
        "the compiler used no processor time for {:?} and was killed, {} times; the node is overloaded, \
         or something keeps its processes from running",
        limits::COMPILE_STILL_WALL_MAX,
        limits::COMPILE_TRIES_MAX
    )]
    CompileHung,
    /// The child used up its processor time.
    #[error("compiling took over {limit:?} of processor time; {}", more(*kind, "compile_cpu", &doubled(*limit)))]
    CompileCpu {
        /// The engine that the code was compiled for.
        kind: EngineKind,
        /// Most processor time that one compilation may use.
        limit: Duration,
    },
    /// The child used up its memory (or died of a defect in the compiler).
    #[error(
        "compiling needs over {} MiB of memory; {}: {stderr}",
        limit / limits::MIB,
        more(*kind, "compile_memory_mb", &(2 * limit / limits::MIB).to_string())
    )]
    CompileMemory {
        /// The engine that the code was compiled for.
        kind: EngineKind,
        /// Most memory that one compilation may use, bytes.
        limit: u64,
        /// The end of the child's standard error, bounded.
        stderr: String,
    },
    /// The finished code is far too large for the file.
    #[error(
        "its compiled code has over {limit} bytes, out of proportion to the file; real guests stay far \
         below, tables of functions that are nearly empty do not"
    )]
    ArtefactTooLarge {
        /// Most bytes that the code of this file may have.
        limit: u64,
    },
    /// The child was killed by a signal.
    #[error("the compiler was killed by signal {signal}: {stderr}")]
    CompileKilled {
        /// Number of the signal.
        signal: i32,
        /// The end of the child's standard error, bounded.
        stderr: String,
    },
    /// The child could not be started, or could not be fed.
    #[error("cannot run the compiler {}: {source}", program.display())]
    Spawn {
        /// Path of the program.
        program: PathBuf,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

impl CompileError {
    /// Did the compilation run into one of its limits?
    pub(super) const fn is_limit_error(&self) -> bool {
        matches!(
            self,
            Self::CompileTimedOut { .. }
                | Self::CompileCpu { .. }
                | Self::CompileMemory { .. }
                | Self::ArtefactTooLarge { .. }
        )
    }
}

/// Largest artefact that a file of this size may have, bytes.
pub(super) fn artefact_bytes_max(file_bytes: usize) -> u64 {
    let of_file = (file_bytes as u64).saturating_mul(limits::COMPILE_ARTEFACT_RATIO);
    of_file.clamp(limits::COMPILE_ARTEFACT_BYTES_LEAST, limits::COMPILE_ARTEFACT_BYTES_MAX)
}

/// Twice a limit, as it is written in a configuration.
fn doubled(limit: Duration) -> String {
    humantime::format_duration(limit.saturating_mul(2)).to_string().replace(' ', "")
}

/// What a person can do about a limit.
fn more(kind: EngineKind, key: &str, value: &str) -> String {
    let quote = if key.ends_with("_mb") { "" } else { "\"" };
    match kind {
        EngineKind::Plugin => {
            format!("raise limits {{ {key} = {quote}{value}{quote} }} in the plugin's block")
        }
        EngineKind::Task | EngineKind::Dense => {
            "a WASM task cannot have more: build it smaller, or with fewer large functions"
                .to_owned()
        }
    }
}

/// Starts compile children.
#[derive(Debug, Clone)]
pub struct Compiler {
    program: PathBuf,
}

impl Compiler {
    /// `program` must call [`compile_child_main`] when its first argument is `__compile`.
    #[must_use]
    pub const fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Compile `wasm` into the existing file `output`. Dropping the future
    /// kills the child.
    pub(super) async fn compile(
        &self,
        wasm: Arc<[u8]>,
        kind: EngineKind,
        format: WasmFormat,
        within: &CompileLimits,
        output: &Path,
    ) -> Result<(), CompileError> {
        let artefact = artefact_bytes_max(wasm.len());
        for _ in 0..limits::COMPILE_TRIES_MAX {
            let child = self.start(kind, format, within, artefact, output);
            let child = child.map_err(|source| self.spawn_error(source))?;
            let (pid, limit) = (child.id(), within.wall_max);
            let ended = tokio::select! {
                ended = clock::timeout(limit, feed_child(child, &wasm)) => ended,
                // Dropped, the child is killed.
                () = wait_until_hung(pid) => {
                    tracing::warn!(pid, "a process that compiles hangs, and is killed and replaced");
                    continue;
                }
            };
            let (status, stderr) = ended
                .ok_or(CompileError::CompileTimedOut { kind, limit })?
                .map_err(|source| self.spawn_error(source))?;
            return child::outcome(status, stderr, kind, within, artefact);
        }
        Err(CompileError::CompileHung)
    }

    fn spawn_error(&self, source: std::io::Error) -> CompileError {
        CompileError::Spawn { program: self.program.clone(), source }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the compile child is the one process that is not started by the host"
    )]
    fn start(
        &self,
        kind: EngineKind,
        format: WasmFormat,
        within: &CompileLimits,
        artefact_bytes: u64,
        output: &Path,
    ) -> std::io::Result<Child> {
        Command::new(&self.program)
            .arg("__compile")
            .args(["--kind", kind.as_str(), "--format", format.as_str()])
            .args(["--file-bytes", &within.file_bytes_max.to_string()])
            .args(["--memory-bytes", &within.address_space_bytes_max.to_string()])
            .args(["--cpu-seconds", &within.cpu_max.as_secs().max(1).to_string()])
            .args(["--artefact-bytes", &artefact_bytes.to_string()])
            .arg("--output")
            .arg(output)
            .env_clear()
            .env("RAYON_NUM_THREADS", limits::COMPILE_THREADS.to_string())
            // Each thread's arena would reserve 64 MiB of the address space it is limited to.
            .env("MALLOC_ARENA_MAX", "2")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in the agent's terminal is the agent's to handle.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

/// Returns when a process has used no processor time for
/// [`limits::COMPILE_STILL_WALL_MAX`]: it hangs.
async fn wait_until_hung(pid: Option<u32>) {
    let (mut before, mut still) = (None, Duration::ZERO);
    while still < limits::COMPILE_STILL_WALL_MAX {
        clock::sleep(limits::COMPILE_LOOK_INTERVAL).await;
        let now = pid.and_then(processor_ticks);
        // A time that cannot be read says nothing.
        still = if now.is_some() && now == before {
            still.saturating_add(limits::COMPILE_LOOK_INTERVAL)
        } else {
            Duration::ZERO
        };
        before = now;
    }
}

/// Processor time that all threads of a process have used, in clock ticks.
fn processor_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have anything in it; what follows it has no parenthesis.
    let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user.saturating_add(system))
}

/// Write the wasm to the child, read the end of its standard error, and wait for its end.
async fn feed_child(mut child: Child, wasm: &[u8]) -> std::io::Result<(ExitStatus, String)> {
    let stdin = child.stdin.take();
    let stderr = child.stderr.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A child that dies early breaks the pipe; its exit status says why.
            let _ = stdin.write_all(wasm).await;
        }
    };
    let complain = async {
        match stderr {
            Some(stderr) => read_end(stderr).await,
            None => String::new(),
        }
    };
    let ((), complaint, status) = tokio::join!(feed, complain, child.wait());
    Ok((status?, complaint))
}

/// The last bytes of a stream, read to its end so that the writer never blocks.
async fn read_end(mut stream: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut chunk = [0u8; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..count).unwrap_or_default());
        let excess = kept.len().saturating_sub(limits::COMPILE_STDERR_BYTES_MAX);
        kept.drain(..excess);
    }
    printable_end(String::from_utf8_lossy(&kept).trim(), limits::COMPILE_STDERR_BYTES_MAX)
}

/// The arguments of a compile child, after `__compile`.
struct ChildArgs {
    kind: EngineKind,
    format: WasmFormat,
    within: CompileLimits,
    artefact_bytes: u64,
    output: PathBuf,
}

impl ChildArgs {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let (mut kind, mut format, mut output) = (None, None, None);
        let (mut file, mut memory, mut cpu, mut artefact) = (None, None, None, None);
        let mut args = args.into_iter();
        while let Some(name) = args.next() {
            let value = args.next()?;
            match name.to_str()? {
                "--kind" => kind = EngineKind::parse(value.to_str()?),
                "--format" => format = WasmFormat::parse(value.to_str()?),
                "--file-bytes" => file = Some(value.to_str()?.parse::<u64>().ok()?),
                "--memory-bytes" => memory = Some(value.to_str()?.parse::<u64>().ok()?),
                "--cpu-seconds" => cpu = Some(value.to_str()?.parse::<u64>().ok()?),
                "--artefact-bytes" => artefact = Some(value.to_str()?.parse::<u64>().ok()?),
                "--output" => output = Some(PathBuf::from(value)),
                _ => return None,
            }
        }
        let kind = kind?;
        let default = CompileLimits::for_file_size(kind.file_bytes_max());
        let within = CompileLimits {
            file_bytes_max: file.unwrap_or(default.file_bytes_max),
            address_space_bytes_max: memory.unwrap_or(default.address_space_bytes_max),
            cpu_max: cpu.map_or(default.cpu_max, Duration::from_secs),
            ..default
        };
        let artefact_bytes = artefact.unwrap_or(limits::COMPILE_ARTEFACT_BYTES_MAX);
        Some(Self { kind, format: format?, within, artefact_bytes, output: output? })
    }
}

fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}
