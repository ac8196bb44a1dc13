//! Files that are hard to read or to compile, made byte by byte.

use std::time::Duration;

use ostler_model::clock::Stopwatch;
use ostler_model::grants::Grants;
use ostler_model::limits::{CompileLimits, PluginLimits, TASK_FILE_BYTES_MAX};
use ostler_sandbox::{CodeAsk, EngineKind, detect_format};

use super::arena::{Arena, Outcome, load_bytes, spec};

const MODULE: &[u8] = b"\0asm\x01\0\0\0";
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
const WALL: Duration = Duration::from_secs(5);

/// Compile as a task, with a second of processor time and half a gibibyte.
pub async fn compile(arena: &Arena, bytes: Vec<u8>) -> Outcome {
    let within = CompileLimits {
        address_space_bytes_max: 512 << 20,
        cpu_max: Duration::from_secs(1),
        wall_max: WALL,
        ..CompileLimits::for_file_size(TASK_FILE_BYTES_MAX)
    };
    let code = arena.services.sandbox.code();
    let format = detect_format(&bytes).unwrap();
    let watch = Stopwatch::start();
    let ask = CodeAsk { kind: EngineKind::Task, format, within, owner: "attack", say: None };
    let compiled = code.load_for(bytes.into(), &ask).await;
    let past = watch.elapsed().checked_sub(WALL);
    let said = compiled.map_or_else(|error| error.to_string(), |_| "compiled".to_owned());
    Outcome { past, ..Outcome::of(said) }
}

fn leb(mut value: u64, into: &mut Vec<u8>) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        into.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}

fn section(id: u8, body: &[u8], into: &mut Vec<u8>) {
    into.push(id);
    leb(body.len() as u64, into);
    into.extend(body);
}

/// A module of `count` functions that all have this body, and a memory.
fn module(count: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes = MODULE.to_vec();
    section(1, &[1, 0x60, 0, 0], &mut bytes);
    let mut functions = Vec::new();
    leb(count as u64, &mut functions);
    functions.resize(functions.len() + count, 0);
    section(3, &functions, &mut bytes);
    section(5, &[1, 0, 1], &mut bytes);
    let mut code = Vec::new();
    leb(count as u64, &mut code);
    let mut one = Vec::new();
    leb(body.len() as u64 + 2, &mut one);
    one.push(0);
    one.extend(body);
    one.push(0x0b);
    for _ in 0..count {
        code.extend(&one);
    }
    section(10, &code, &mut bytes);
    bytes
}

/// Functions that load `steps` times from memory.
pub fn functions(count: usize, steps: usize) -> Vec<u8> {
    module(count, &[0x41, 5, 0x28, 2, 0, 0x1a].repeat(steps))
}

pub fn deep_blocks(depth: usize) -> Vec<u8> {
    module(1, &[[0x02, 0x40].repeat(depth), vec![0x0b; depth]].concat())
}

pub fn deep_components(depth: usize) -> Vec<u8> {
    let mut bytes = COMPONENT.to_vec();
    for _ in 0..depth {
        let mut around = COMPONENT.to_vec();
        section(4, &bytes, &mut around);
        bytes = around;
    }
    bytes
}

pub fn lying_section() -> Vec<u8> {
    let mut bytes = MODULE.to_vec();
    bytes.push(1);
    leb(u64::from(u32::MAX) - 15, &mut bytes);
    bytes.extend([1, 0x60, 0, 0]);
    bytes
}

pub fn lying_count() -> Vec<u8> {
    let mut types = Vec::new();
    leb(u64::from(u32::MAX), &mut types);
    types.extend([0x60, 0, 0]);
    let mut bytes = MODULE.to_vec();
    section(1, &types, &mut bytes);
    bytes
}

async fn plugin(arena: &Arena, text: &str) -> Outcome {
    let spec = spec("bytes", serde_json::json!({}), Grants::default(), PluginLimits::default());
    match load_bytes(&arena.plugins, spec, wat::parse_str(text).unwrap()).await {
        Ok(_) => Outcome::of("it was loaded"),
        Err(error) => Outcome::of(error),
    }
}

pub async fn many_imports(arena: &Arena) -> Outcome {
    let imports: String = (0..2_000).map(|n| format!("(import \"a{n}\" (func))")).collect();
    plugin(arena, &format!("(component {imports})")).await
}

pub async fn other_version(arena: &Arena) -> Outcome {
    plugin(
        arena,
        r#"(component (instance $i) (export "ostler:plugin/device@0.2.0" (instance $i)))"#,
    )
    .await
}
