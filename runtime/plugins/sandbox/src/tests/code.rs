//! Compile children and the code cache.

use super::*;
use crate::compile::Compiler;
use ostler_engine::{compatibility, compiler_engine};
use ostler_model::limits::CompileLimits;

fn stats(bench: &Bench) -> CacheStats {
    bench.sandbox.code().stats()
}

fn only_entry(bench: &Bench) -> PathBuf {
    let mut entries: Vec<_> =
        std::fs::read_dir(bench.cache_dir()).unwrap().map(|item| item.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

/// Change an entry as a broken disk would, but under a new name: the old file may be mapped.
fn replace(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    let other = path.with_extension("new");
    std::fs::write(&other, bytes).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(other, path).unwrap();
}

#[test]
fn code_of_the_compile_child_fits_the_pooled_engines() {
    let bench = Bench::new();
    for kind in [EngineKind::Plugin, EngineKind::Task] {
        assert_eq!(bench.sandbox.pool(kind).lowered, None, "a real pool");
        let child = compatibility(&compiler_engine(kind).unwrap());
        assert_eq!(compatibility(bench.sandbox.engine(kind)), child);
    }
}

#[tokio::test]
async fn code_is_compiled_once_then_shared_then_mapped_from_disk() {
    let bench = Bench::new();
    let first = bench.load(&plain(NOTHING)).await.unwrap();
    let second = bench.load(&plain(NOTHING)).await.unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    drop((first, second));
    bench.load(&plain(NOTHING)).await.unwrap();
    let expected = CacheStats { compiled: 1, memory_hits: 1, disk_hits: 1, ..Default::default() };
    assert_eq!(stats(&bench), expected);

    // The next agent over the same directory.
    let next = Sandbox::new(config(bench.dir.path(), 4)).unwrap();
    let wasm: Arc<[u8]> = wat::parse_str(plain(NOTHING)).unwrap().into();
    let code = next.code().load(wasm, EngineKind::Plugin, WasmFormat::Component).await.unwrap();
    assert!(code.component().is_some() && code.module().is_none());
    assert_eq!(next.code().stats(), CacheStats { disk_hits: 1, ..CacheStats::default() });
}

/// A sandbox in the program of which is this code.
fn bringing(code: Vec<u8>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let ahead = vec![&*code.leak()];
    let sandbox = Sandbox::new(SandboxConfig { ahead, ..config(dir.path(), 4) }).unwrap();
    Bench { sandbox, dir }
}

fn made_ahead(wat: &str) -> Vec<u8> {
    let wasm = wat::parse_str(wat).unwrap();
    ostler_engine::ahead::make(&wasm, EngineKind::Plugin, WasmFormat::Component).unwrap()
}

#[tokio::test]
async fn code_that_came_with_the_program_is_used_and_nothing_is_compiled() {
    let wat = plain(NOTHING);
    let bench = bringing(made_ahead(&wat));
    let code = bench.load(&wat).await.unwrap();
    assert_eq!(stats(&bench), CacheStats { ahead: 1, ..Default::default() });
    let guest = run_export(&bench.sandbox, code, StoreLimits::default(), |_| {});
    let run = bench.sandbox.run_with_deadline(PATIENCE, &CancellationToken::new(), guest).await;
    assert!(run.result.is_ok());

    // From now on it is an entry like any other, also for a program that brings none.
    let next = Sandbox::new(config(bench.dir.path(), 4)).unwrap();
    let wasm: Arc<[u8]> = wat::parse_str(&wat).unwrap().into();
    next.code().load(wasm, EngineKind::Plugin, WasmFormat::Component).await.unwrap();
    assert_eq!(next.code().stats(), CacheStats { disk_hits: 1, ..Default::default() });
}

#[tokio::test]
async fn code_that_does_not_fit_is_not_used_and_the_guest_is_compiled() {
    let wat = plain(NOTHING);
    let good = made_ahead(&wat);
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    // Whole and of this engine, but of something else, and called the code of this.
    let mut of_another = made_ahead(&plain(r#"(func (export "run") nop)"#));
    let (digest, at) = (good.len() - 32, of_another.len() - 32);
    of_another[at..].copy_from_slice(&good[digest..]);
    for code in [damaged, of_another] {
        let bench = bringing(code);
        bench.load(&wat).await.unwrap();
        assert_eq!(stats(&bench), CacheStats { refused: 1, compiled: 1, ..Default::default() });
    }
    // This code is for another engine, so it is not used.
    let wasm = wat::parse_str(&wat).unwrap();
    let task = ostler_engine::ahead::make(&wasm, EngineKind::Task, WasmFormat::Component).unwrap();
    for code in [task, Vec::new()] {
        let bench = bringing(code);
        bench.load(&wat).await.unwrap();
        assert_eq!((stats(&bench).ahead, stats(&bench).compiled), (0, 1));
    }
}

#[tokio::test]
async fn a_process_without_a_cache_maps_what_it_is_handed_and_compiles_nothing() {
    let bench = Bench::new();
    let wasm: Arc<[u8]> = wat::parse_str(plain(NOTHING)).unwrap().into();
    let ask = |format| CodeAsk {
        kind: EngineKind::Plugin,
        format,
        within: CompileLimits::for_file_size(1 << 20),
        owner: "job",
        say: None,
    };
    let ask = ask(WasmFormat::Component);
    let file = bench.sandbox.code().file_for(Arc::clone(&wasm), &ask).await.unwrap();
    bench.sandbox.code().file_for(Arc::clone(&wasm), &ask).await.unwrap();
    let expected = CacheStats { compiled: 1, memory_hits: 1, ..CacheStats::default() };
    assert_eq!(stats(&bench), expected);

    let other = SandboxConfig { cache_dir: None, ..config(bench.dir.path(), 4) };
    let other = Sandbox::new(other).unwrap();
    let code = other.code().map(&file).unwrap();
    assert!(Arc::ptr_eq(&code, &other.code().map(&file).unwrap()));
    let guest = run_export(&other, code, StoreLimits::default(), |_| {});
    let ran = other.run_with_deadline(PATIENCE, &CancellationToken::new(), guest).await;
    ran.result.unwrap();
    let refused = other.code().load_for(wasm, &ask).await.unwrap_err();
    assert!(matches!(refused, LoadError::NoCache), "{refused}");
}

#[tokio::test]
async fn code_of_the_tasks_used_last_is_kept_and_older_code_goes() {
    let bench = Bench::new();
    let load = |wat: String| {
        let wasm: Arc<[u8]> = wat::parse_str(wat).unwrap().into();
        bench.sandbox.code().load(wasm, EngineKind::Task, WasmFormat::Module)
    };
    let module = |number: usize| format!("(module (func (export \"f{number}\")))");
    for number in 0..=ostler_model::limits::TASK_CODE_KEPT_MAX {
        drop(load(module(number)).await.unwrap());
    }
    drop(load(module(ostler_model::limits::TASK_CODE_KEPT_MAX)).await.unwrap());
    assert_eq!((stats(&bench).memory_hits, stats(&bench).disk_hits), (1, 0));
    drop(load(module(0)).await.unwrap());
    assert_eq!((stats(&bench).memory_hits, stats(&bench).disk_hits), (1, 1));
}

#[tokio::test]
async fn many_requests_for_the_same_code_compile_it_once() {
    let bench = Bench::new();
    let wat = plain(NOTHING);
    let (a, b, c, d) =
        tokio::join!(bench.load(&wat), bench.load(&wat), bench.load(&wat), bench.load(&wat));
    for code in [a, b, c, d] {
        assert!(code.is_ok());
    }
    assert_eq!(stats(&bench).compiled, 1);
    assert_eq!(stats(&bench).memory_hits, 3);
}

#[tokio::test]
async fn damaged_entries_are_compiled_anew() {
    let bench = Bench::new();
    bench.load(&plain(NOTHING)).await.unwrap();
    let changes: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes[5_000] ^= 1,
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.truncate(10),
        Vec::clear,
    ];
    for (count, change) in changes.into_iter().enumerate() {
        replace(&only_entry(&bench), change);
        bench.load(&plain(NOTHING)).await.unwrap();
        assert_eq!(stats(&bench).refused, count as u64 + 1);
        assert_eq!(stats(&bench).compiled, count as u64 + 2);
    }
    assert_eq!(stats(&bench).disk_hits, 0);
}

#[tokio::test]
async fn entries_that_others_could_have_written_are_not_mapped() {
    let bench = Bench::new();
    bench.load(&plain(NOTHING)).await.unwrap();
    let entry = only_entry(&bench);
    std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o660)).unwrap();
    bench.load(&plain(NOTHING)).await.unwrap();
    assert_eq!((stats(&bench).refused, stats(&bench).compiled), (1, 2));

    // A link to sound code elsewhere is refused as well.
    let elsewhere = bench.dir.path().join("elsewhere");
    std::fs::rename(&entry, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &entry).unwrap();
    bench.load(&plain(NOTHING)).await.unwrap();
    assert_eq!((stats(&bench).refused, stats(&bench).compiled), (2, 3));
    assert!(elsewhere.exists() && !entry.is_symlink());
}

#[test]
fn a_cache_directory_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 1);
    let cache = config.cache_dir.clone().unwrap();
    std::fs::create_dir(&cache).unwrap();
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Sandbox::new(config).unwrap_err();
    assert!(matches!(refused, SandboxError::UnsafeCacheDir { .. }), "{refused}");
}

#[tokio::test]
async fn code_that_belongs_to_another_user_is_not_mapped() {
    const NOBODY: u32 = 65_534;
    let bench = Bench::new();
    bench.load(&plain(NOTHING)).await.unwrap();
    // Only root can give a file away; for others nobody could have.
    if std::os::unix::fs::chown(only_entry(&bench), Some(NOBODY), None).is_err() {
        return;
    }
    bench.load(&plain(NOTHING)).await.unwrap();
    assert_eq!((stats(&bench).refused, stats(&bench).compiled), (1, 2));
}

/// Entries by the wasm they are named after.
fn entry_of(bench: &Bench, wat: &str) -> PathBuf {
    let digest = Digest::compute(&wat::parse_str(wat).unwrap()).to_string();
    let items = std::fs::read_dir(bench.cache_dir()).unwrap().map(|item| item.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&digest);
    items.into_iter().find(named).unwrap()
}

#[tokio::test]
async fn code_that_another_cache_made_is_not_mapped() {
    let (bench, other) = (Bench::new(), Bench::new());
    bench.load(&plain(NOTHING)).await.unwrap();
    other.load(&plain(NOTHING)).await.unwrap();
    // Whole, of this engine, of this wasm, of this user: all but the secret is right.
    let planted = std::fs::read(only_entry(&other)).unwrap();
    replace(&only_entry(&bench), |bytes| *bytes = planted);
    bench.load(&plain(NOTHING)).await.unwrap();
    assert_eq!((stats(&bench).refused, stats(&bench).compiled), (1, 2));
    bench.load(&plain(NOTHING)).await.unwrap();
    assert_eq!(stats(&bench).disk_hits, 1, "what was compiled instead is used");
}

#[tokio::test]
async fn code_under_the_name_of_another_plugin_is_not_mapped() {
    let bench = Bench::new();
    let (one, two) = (plain(NOTHING), plain(r#"(func (export "run") nop)"#));
    bench.load(&one).await.unwrap();
    bench.load(&two).await.unwrap();
    let (first, second) = (entry_of(&bench, &one), entry_of(&bench, &two));
    let aside = bench.cache_dir().join("aside");
    std::fs::rename(&first, &aside).unwrap();
    std::fs::rename(&second, &first).unwrap();
    std::fs::rename(&aside, &second).unwrap();
    bench.load(&one).await.unwrap();
    bench.load(&two).await.unwrap();
    assert_eq!((stats(&bench).refused, stats(&bench).compiled), (2, 4));
    assert_eq!(stats(&bench).disk_hits, 0);
}

#[tokio::test]
async fn a_secret_that_others_could_have_read_is_replaced_and_code_made_anew() {
    let bench = Bench::new();
    bench.load(&plain(NOTHING)).await.unwrap();
    let key = bench.dir.path().join("code.key");
    let old = std::fs::read(&key).unwrap();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let elsewhere = bench.dir.path().join("elsewhere");
    let spoil: [&dyn Fn(); 3] = [
        &|| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap(),
        &|| std::fs::write(&key, "short").unwrap(),
        &|| {
            std::fs::rename(&key, &elsewhere).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &key).unwrap();
        },
    ];
    for spoil in spoil {
        spoil();
        let next = Sandbox::new(config(bench.dir.path(), 4)).unwrap();
        let wasm: Arc<[u8]> = wat::parse_str(plain(NOTHING)).unwrap().into();
        next.code().load(wasm, EngineKind::Plugin, WasmFormat::Component).await.unwrap();
        let CacheStats { refused, compiled, disk_hits, .. } = next.code().stats();
        assert_eq!((refused, compiled, disk_hits), (1, 1, 0));
        let new = std::fs::read(&key).unwrap();
        assert!(new.len() == 32 && new != old && !key.is_symlink());
    }
}

#[test]
fn a_directory_above_the_cache_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let above = dir.path().join("data");
    std::fs::create_dir(&above).unwrap();
    let config = || SandboxConfig { cache_dir: Some(above.join("code")), ..config(dir.path(), 1) };
    for mode in [0o777, 0o770, 0o702] {
        std::fs::set_permissions(&above, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = Sandbox::new(config()).unwrap_err();
        assert!(matches!(refused, SandboxError::SharedDataDir { .. }), "{refused}");
        assert!(refused.to_string().contains("chmod go-w"), "{refused}");
    }
    // Where only the owner of a name may remove it, as in /tmp, the rest is kept by owners.
    std::fs::set_permissions(&above, std::fs::Permissions::from_mode(0o1777)).unwrap();
    Sandbox::new(config()).unwrap();
}

#[tokio::test]
async fn a_failed_compilation_leaves_nothing_behind() {
    let bench = Bench::new();
    bench.load("(module (func (result i32)))").await.unwrap_err();
    assert_eq!(std::fs::read_dir(bench.cache_dir()).unwrap().count(), 0);
    assert_eq!(stats(&bench), CacheStats::default());
}

/// A module of `count` small functions that are not all alike.
fn many_functions(count: usize) -> Arc<[u8]> {
    let mut text = String::from("(module (memory 1)");
    for number in 0..count {
        text.push_str(&format!(
            "(func (param i32) (result i32) (i32.load (i32.add (local.get 0) (i32.const {number}))))"
        ));
    }
    text.push(')');
    wat::parse_str(text).unwrap().into()
}

/// Compile with a child that runs the shell commands `before` first.
async fn compile_after(before: &str, wasm: Arc<[u8]>, wall: Duration) -> CompileError {
    let within = CompileLimits { wall_max: wall, ..within_defaults() };
    compile_within(before, wasm, within).await
}

fn within_defaults() -> CompileLimits {
    CompileLimits::for_file_size(ostler_model::limits::TASK_FILE_BYTES_MAX)
}

async fn compile_within(before: &str, wasm: Arc<[u8]>, within: CompileLimits) -> CompileError {
    let dir = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(compile_child_script(dir.path(), before));
    let output = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
    let compiled =
        compiler.compile(wasm, EngineKind::Task, WasmFormat::Module, &within, output.path());
    compiled.await.unwrap_err()
}

#[tokio::test]
async fn a_compile_bomb_dies_of_the_childs_own_limits() {
    let wasm = many_functions(60_000);
    let defaults = within_defaults();
    let within = CompileLimits { cpu_max: Duration::from_secs(1), ..defaults };
    let killed = compile_within("", Arc::clone(&wasm), within).await;
    assert!(matches!(killed, CompileError::CompileCpu { .. }), "{killed}");
    assert!(killed.to_string().contains("over 1s of processor time"), "{killed}");
    let within = CompileLimits { address_space_bytes_max: 250_000 << 10, ..defaults };
    let killed = compile_within("", Arc::clone(&wasm), within).await;
    assert!(matches!(killed, CompileError::CompileMemory { .. }), "{killed}");
    // The child never raises a limit that it was started with.
    let killed = compile_after("ulimit -t 1", wasm, PATIENCE).await;
    assert!(matches!(killed, CompileError::CompileKilled { signal: 9, .. }), "{killed}");
}

#[tokio::test]
async fn a_guest_with_a_smaller_limit_of_its_own_for_its_file_does_not_load() {
    let bench = Bench::new();
    let wasm = many_functions(100);
    let within = CompileLimits { file_bytes_max: 500, ..within_defaults() };
    let code = bench.sandbox.code();
    let (kind, format) = (EngineKind::Task, WasmFormat::Module);
    let ask = CodeAsk { kind, format, within, owner: "", say: None };
    let refused = code.load_for(wasm, &ask).await;
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, LoadError::Compile(CompileError::TooLarge { max: 500, .. })),
        "{refused}"
    );
}

#[tokio::test]
async fn a_compile_child_may_open_few_files_however_many_its_agent_may() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    // Like an agent that raised its limit.
    let before =
        format!("ulimit -Sn $(ulimit -Hn); export OSTLER_TEST_OPEN_FILES={}", told.display());
    let compiler = Compiler::new(compile_child_script(dir.path(), &before));
    let output = tempfile::NamedTempFile::new_in(dir.path()).unwrap();
    let (wasm, kind, within) = (many_functions(100), EngineKind::Task, within_defaults());
    compiler.compile(wasm, kind, WasmFormat::Module, &within, output.path()).await.unwrap();
    let few = Some(ostler_model::limits::COMPILE_OPEN_FILES_MAX);
    assert_eq!(std::fs::read_to_string(told).unwrap(), format!("{few:?} {few:?}"));
}

#[tokio::test]
async fn a_compiler_that_hangs_is_killed_at_its_deadline() {
    let wall = Duration::from_millis(200);
    let late = compile_after("exec sleep 1000", many_functions(1), wall).await;
    assert!(matches!(late, CompileError::CompileTimedOut { limit, .. } if limit == wall), "{late}");
}

#[tokio::test]
async fn what_a_failing_compiler_complains_is_kept_but_bounded() {
    let before = "i=0; while [ $i -lt 3000 ]; do echo 'line of complaint' >&2; i=$((i+1)); done; \
                  echo the last word >&2; exit 3";
    match compile_after(before, many_functions(1), PATIENCE).await {
        CompileError::CompileFailed { status, stderr } => {
            assert_eq!(status.code(), Some(3));
            assert!(stderr.ends_with("the last word"), "{stderr}");
            assert!(stderr.len() <= ostler_model::limits::COMPILE_STDERR_BYTES_MAX);
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_compiler_that_is_not_there_is_named() {
    let compiler = Compiler::new(PathBuf::from("/nonexistent/ostler"));
    let wasm = many_functions(1);
    let output = Path::new("/nonexistent/output");
    let within = within_defaults();
    let missing = compiler.compile(wasm, EngineKind::Task, WasmFormat::Module, &within, output);
    let missing = missing.await.unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/ostler"), "{missing}");
}
