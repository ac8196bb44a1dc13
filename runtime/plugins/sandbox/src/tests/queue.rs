//! Tests of the order of compilations, of failures that are remembered, and of their reports.

use std::sync::Mutex;

use super::*;
use ostler_model::limits::{self, CompileLimits};

/// A compiler that hangs on every file that is not small: such a file may have a larger artefact.
fn hangs_on_large_files(bench: &Bench) {
    let small = limits::COMPILE_ARTEFACT_BYTES_LEAST;
    let before =
        format!("case \"$*\" in *'artefact-bytes {small} '*) ;; *) exec sleep 1000;; esac");
    compile_child_script(bench.dir.path(), &before);
}

/// A module with `data` bytes of data.
fn module(number: usize, data: usize) -> Arc<[u8]> {
    let text = "x".repeat(data);
    let text = format!("(module (memory 64) (data (i32.const {number}) \"{text}\"))");
    wat::parse_str(text).unwrap().into()
}

const LARGE: usize = 400_000;

async fn load(bench: &Bench, wasm: Arc<[u8]>, owner: &str, said: &Said) -> Result<(), LoadError> {
    let within = CompileLimits::for_file_size(limits::TASK_FILE_BYTES_MAX);
    let say = |text: &str| said.lock().unwrap().push(format!("{owner} {text}"));
    let (kind, format) = (EngineKind::Task, WasmFormat::Module);
    let ask = CodeAsk { kind, format, within, owner, say: Some(&say) };
    bench.sandbox.code().load_for(wasm, &ask).await.map(drop)
}

type Said = Mutex<Vec<String>>;

/// Wait until `count` loads wait for their turn.
async fn waiting(said: &Said, count: usize) {
    let wait = async {
        let waits = |text: &String| text.contains(" waits for its turn");
        while said.lock().unwrap().iter().filter(|text| waits(text)).count() < count {
            ostler_model::clock::sleep(Duration::from_millis(5)).await;
        }
    };
    ostler_model::clock::timeout(PATIENCE, wait).await.expect("they wait");
}

#[tokio::test]
async fn whatever_came_before_a_quick_guest_waits_a_few_tries_and_hears_of_it() {
    let (bench, said) = (Bench::new(), Said::default());
    hangs_on_large_files(&bench);
    let owners: Vec<String> = (0..6).map(|number| format!("slow-{number}")).collect();
    let slow = owners
        .iter()
        .enumerate()
        .map(|(number, owner)| load(&bench, module(number, LARGE), owner, &said));
    let slow = futures_util::future::join_all(slow);
    let honest = async {
        waiting(&said, 4).await;
        load(&bench, module(0, 10), "honest", &said).await.unwrap();
    };
    tokio::select! {
        _ = slow => panic!("they hang"),
        () = honest => {}
    }
    let said = said.into_inner().unwrap();
    // No owner's guest was begun again more than once.
    for owner in &owners {
        let again = format!(
            "{owner} takes long to compile and is tried again after others have had their turn"
        );
        assert!(said.iter().filter(|text| **text == again).count() <= 1, "{said:?}");
    }
    assert!(
        said.contains(&"honest waits for its turn to be compiled, with 6 others".to_owned()),
        "{said:?}"
    );
    assert!(said.contains(&"honest is being compiled".to_owned()), "{said:?}");
    assert!(said.iter().any(|text| text.contains(" takes long to compile")), "{said:?}");
}

#[tokio::test]
async fn an_owner_with_many_files_is_refused_more_and_the_others_are_not() {
    let (bench, said) = (Bench::new(), Said::default());
    hangs_on_large_files(&bench);
    let many = (0..limits::COMPILE_OWNER_QUEUE_MAX)
        .map(|number| load(&bench, module(number, LARGE), "many", &said));
    let many = futures_util::future::join_all(many);
    let others = async {
        waiting(&said, limits::COMPILE_OWNER_QUEUE_MAX - limits::COMPILE_CHILDREN_MAX).await;
        let refused = load(&bench, module(99, LARGE), "many", &said).await.unwrap_err();
        assert!(refused.to_string().contains("many has 8 guests that wait"), "{refused}");
        load(&bench, module(0, 10), "honest", &said).await.unwrap();
    };
    tokio::select! {
        _ = many => panic!("they hang"),
        () = others => {}
    }
    // Nobody wants them any more: their places are free at once.
    load(&bench, module(1, 10), "many", &said).await.unwrap();
}

#[tokio::test]
async fn what_ran_into_a_limit_is_not_compiled_again_until_the_limit_is_raised() {
    let bench = Bench::new();
    hangs_on_large_files(&bench);
    let code = bench.sandbox.code();
    let wasm = module(1, LARGE);
    let load = async |wall_max: Duration| {
        let within =
            CompileLimits { wall_max, ..CompileLimits::for_file_size(limits::TASK_FILE_BYTES_MAX) };
        let (kind, format) = (EngineKind::Plugin, WasmFormat::Module);
        let ask = CodeAsk { kind, format, within, owner: "slow", say: None };
        code.load_for(Arc::clone(&wasm), &ask).await.map(drop)
    };
    let late = load(Duration::from_millis(200)).await.unwrap_err();
    let text = late.to_string();
    assert!(text.contains("raise limits { compile_wall = \"400ms\" }"), "{text}");
    assert!(text.contains("the node is overloaded"), "{text}");
    let known = load(Duration::from_millis(200)).await.unwrap_err();
    assert!(matches!(known, LoadError::Known { .. }), "{known}");
    assert!(known.to_string().contains("is not tried again"), "{known}");
    compile_child_script(bench.dir.path(), "");
    load(PATIENCE).await.unwrap();
}

/// Tables that are nearly empty: each line of the text is some megabytes of finished code.
fn sparse_tables(count: usize) -> Arc<[u8]> {
    let mut text = String::from("(module (func $f)");
    for number in 0..count {
        text.push_str(&format!(
            "(table $t{number} 1000000 funcref)(elem (table $t{number}) (i32.const 999999) func $f)"
        ));
    }
    text.push(')');
    wat::parse_str(text).unwrap().into()
}

#[tokio::test]
async fn code_out_of_proportion_to_its_file_is_refused_before_it_is_mapped() {
    let bench = Bench::new();
    let wasm = sparse_tables(80);
    assert!(wasm.len() < 2_000, "{}", wasm.len());
    let loaded = bench.sandbox.code().load(wasm, EngineKind::Task, WasmFormat::Module).await;
    let refused = loaded.map(drop).unwrap_err();
    assert!(
        matches!(refused, LoadError::Compile(CompileError::ArtefactTooLarge { .. })),
        "{refused}"
    );
    assert_eq!(std::fs::read_dir(bench.cache_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn guests_that_hold_their_threads_for_good_hold_nobody_else() {
    let bench = Bench::new();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let spawn = |blocks, held: Option<Arc<Mutex<std::sync::mpsc::Receiver<()>>>>| {
        let guest = async move {
            if let Some(held) = held {
                let _gone = held.lock().unwrap().recv();
            }
            Ok(())
        };
        bench.sandbox.spawn_bounded(guest, CpuMeter::default(), PATIENCE, blocks)
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    let threads = (cores * limits::CALL_THREADS_PER_CORE).max(limits::CALL_THREADS_MIN);
    let mut stuck: Vec<_> =
        (0..2 * threads).map(|_| spawn(HostBlocking::Maybe, Some(Arc::clone(&held)))).collect();
    for _ in 0..100 {
        ostler_model::clock::timeout(PATIENCE, spawn(HostBlocking::Never, None).join())
            .await
            .unwrap()
            .unwrap();
    }
    assert!(bench.sandbox.calls_alive() >= stuck.len());
    drop(let_go);
    for guest in &mut stuck {
        guest.join().await.unwrap();
    }
}
