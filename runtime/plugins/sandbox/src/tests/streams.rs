//! Output of real guests through [`GuestOutput`].

use std::io;
use std::pin::Pin;
use std::sync::Mutex;

use tokio::sync::Notify;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::p2::{OutputStream, StreamError};

use super::*;

#[derive(Default)]
struct Kept(Mutex<Vec<u8>>);

impl GuestSink for Kept {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }
}

struct Closed;

impl GuestSink for Closed {
    fn write(&self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

/// Room for one write at a time.
#[derive(Default)]
struct Narrow {
    kept: Mutex<Vec<u8>>,
    emptied: Notify,
}

impl GuestSink for Narrow {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.kept.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn room(&self) -> usize {
        if self.kept.lock().unwrap().is_empty() { 4 } else { 0 }
    }

    fn wait_for_room(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            while self.room() == 0 {
                self.emptied.notified().await;
            }
        })
    }
}

struct TaskState {
    limiter: GuestLimiter,
    wasi: WasiP1Ctx,
}

impl StoreState for TaskState {
    fn limiter(&mut self) -> &mut GuestLimiter {
        &mut self.limiter
    }
}

/// A preview-1 program that writes `line` a thousand times, and exits with the error number of the
/// last write.
const WRITER: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 16) "line\n")
    (func (export "_start") (local $left i32) (local $error i32)
        (i32.store (i32.const 0) (i32.const 16))
        (i32.store (i32.const 4) (i32.const 5))
        (local.set $left (i32.const 1000))
        (loop
            (local.set $error
                (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (local.set $left (i32.sub (local.get $left) (i32.const 1)))
            (br_if 0 (local.get $left)))
        (call $exit (local.get $error))))"#;

async fn run_writer(sink: Arc<dyn GuestSink>) -> CallError {
    let bench = Bench::new();
    let wasm: Arc<[u8]> = wat::parse_str(WRITER).unwrap().into();
    let code = bench.sandbox.code().load(wasm, EngineKind::Task, WasmFormat::Module).await.unwrap();
    let engine = bench.sandbox.engine(EngineKind::Task).clone();
    let guest = async move {
        let limits = StoreLimits::from(&ostler_model::limits::TaskLimits::default());
        let limiter = GuestLimiter::new(&limits);
        let usage = limiter.usage();
        let wasi = new_wasi_builder(&limits).stdout(GuestOutput::new(sink)).build_p1();
        let mut store = new_store(&engine, &limits, TaskState { limiter, wasi })?;
        let run = async {
            let mut linker = wasmtime::Linker::new(&engine);
            p1::add_to_linker_async(&mut linker, |state: &mut TaskState| &mut state.wasi)?;
            let module = code.module().expect("a module");
            let instance = linker.instantiate_async(&mut store, module).await?;
            let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
            start.call_async(&mut store, ()).await
        };
        run.await.map_err(|error| classify(error, &limits, &usage))
    };
    let cancel = CancellationToken::new();
    let run = bench.sandbox.run_with_deadline(PATIENCE, &cancel, guest);
    run.await.result.unwrap_err()
}

#[tokio::test]
async fn a_preview_1_program_writes_all_its_lines_in_order_and_keeps_its_exit_code() {
    let kept = Arc::new(Kept::default());
    let end = run_writer(Arc::clone(&kept) as Arc<dyn GuestSink>).await;
    assert!(matches!(end, CallError::Exit { code: 0 }), "{end:?}");
    assert_eq!(*kept.0.lock().unwrap(), b"line\n".repeat(1_000));
}

#[tokio::test]
async fn a_closed_sink_is_an_error_the_program_can_see() {
    let end = run_writer(Arc::new(Closed)).await;
    assert!(matches!(end, CallError::Exit { code: 1.. }), "{end:?}");
}

#[tokio::test]
async fn a_full_sink_holds_the_writer_back_until_there_is_room() {
    let narrow = Arc::new(Narrow::default());
    let mut stream = GuestOutput::new(Arc::clone(&narrow) as Arc<dyn GuestSink>);
    let mut taken = Vec::new();
    let write = stream.blocking_write_and_flush(bytes::Bytes::from_static(b"0123456789"));
    let take = async {
        while taken.len() < 10 {
            taken.append(&mut narrow.kept.lock().unwrap());
            narrow.emptied.notify_one();
            tokio::task::yield_now().await;
        }
    };
    let (written, ()) = tokio::join!(write, take);
    written.unwrap();
    assert_eq!(taken, b"0123456789");
}

#[test]
fn a_permit_is_bounded_and_a_larger_write_is_refused() {
    let kept: Arc<dyn GuestSink> = Arc::new(Kept::default());
    let mut stream = GuestOutput::new(kept);
    let permit = stream.check_write().unwrap();
    assert_eq!(permit, ostler_model::limits::GUEST_OUTPUT_PERMIT_BYTES);
    let refused = stream.write(vec![0; permit + 1].into());
    assert!(matches!(refused, Err(StreamError::Trap(_))), "{refused:?}");
}
