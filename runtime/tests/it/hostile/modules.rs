//! Tasks written by hand: what no compiler makes.

use std::fmt::Write as _;

/// All the memory that there is, at the start.
pub const LARGE_MEMORY: &str = r#"(module (memory 65536) (func (export "_start")))"#;

pub const TABLE: &str = r#"(module (table 1 funcref)
    (func (export "_start")
        (if (i32.eq (table.grow (ref.null func) (i32.const 100000000)) (i32.const -1))
            (then unreachable))))"#;

/// 31.75 MiB of memory, and tables of 0.3 MiB.
pub const SUM: &str = r#"(module (memory 508)
    (table 5000 funcref) (table 5000 funcref) (table 5000 funcref) (table 5000 funcref)
    (table 5000 funcref) (table 5000 funcref) (table 5000 funcref) (table 5000 funcref)
    (func (export "_start")))"#;

pub fn many_memories(count: usize) -> String {
    format!(r#"(module {} (func (export "_start")))"#, "(memory 1)".repeat(count))
}

/// Tables of a million elements, nearly empty.
pub fn sparse_tables(count: usize) -> String {
    let mut text = String::from(r#"(module (func $f (export "_start"))"#);
    for number in 0..count {
        let _infallible = write!(
            text,
            "(table $t{number} 1000000 funcref)(elem (table $t{number}) (i32.const 999999) func $f)"
        );
    }
    text + ")"
}

/// Functions without a beginning.
pub fn nothing_to_run(count: usize) -> String {
    format!(
        "(module {})",
        "(func (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))".repeat(count)
    )
}

/// A module of WASI preview 1 that calls one function and exits with what it said.
fn preview_1(name: &str, params: usize, call: &str) -> String {
    format!(
        r#"(module
            (import "wasi_snapshot_preview1" "{name}" (func $call (param {}) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 256)
            (data (i32.const 0) "\10\00\00\00\00\00\00\40")
            (func (export "_start") (call $exit (call $call {call}))))"#,
        "i32 ".repeat(params)
    )
}

/// The buffer at 0 begins at 16 and has a gibibyte.
pub fn gigabyte_write() -> String {
    preview_1("fd_write", 4, "(i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)")
}

pub fn gigabyte_random() -> String {
    preview_1("random_get", 2, "(i32.const 16) (i32.const 1073741824)")
}

pub fn gigabyte_poll() -> String {
    preview_1("poll_oneoff", 4, "(i32.const 0) (i32.const 0) (i32.const 60000000) (i32.const 8)")
}

/// Fills all its memory again and again: one instruction, which no tick interrupts.
pub fn filler(mebibytes: u32) -> String {
    let (pages, bytes) = (mebibytes * 16, mebibytes << 20);
    format!(
        r#"(module (memory {pages}) (func (export "_start")
            (loop (memory.fill (i32.const 0) (i32.const 1) (i32.const {bytes})) (br 0))))"#
    )
}

/// Exits with the number of descriptors that let themselves be written, or closed.
pub const FORGED_DESCRIPTORS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\01\00\00\00")
    (func (export "_start") (local $fd i32) (local $open i32)
        (local.set $fd (i32.const 9))
        (loop
            (if (i32.eqz (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
                (then (local.set $open (i32.add (local.get $open) (i32.const 1)))))
            (if (i32.eqz (call $close (local.get $fd)))
                (then (local.set $open (i32.add (local.get $open) (i32.const 1)))))
            (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
            (br_if 0 (i32.lt_u (local.get $fd) (i32.const 20000))))
        (if (i32.eqz (call $write (i32.const -1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (then (local.set $open (i32.add (local.get $open) (i32.const 1)))))
        (call $exit (local.get $open))))"#;

/// Prints, moves standard output to the number of standard error, prints to both numbers, closes it, and
/// prints once more; exits with how often it was refused.
pub const MOVED_OUTPUT: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_renumber" (func $move (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\20\00\00\00\00\00\00\00\20\00\00\00\02\00\00\00")
    (data (i32.const 32) "a\n")
    (func $print (param $fd i32) (result i32)
        (i32.ne (i32.const 0)
            (call $write (local.get $fd) (i32.const 0) (i32.const 2) (i32.const 16))))
    (func (export "_start") (local $refused i32)
        (local.set $refused (call $print (i32.const 1)))
        (if (call $move (i32.const 1) (i32.const 2)) (then unreachable))
        (local.set $refused (i32.add (local.get $refused) (call $print (i32.const 1))))
        (local.set $refused (i32.add (local.get $refused) (call $print (i32.const 2))))
        (if (call $close (i32.const 2)) (then unreachable))
        (local.set $refused (i32.add (local.get $refused) (call $print (i32.const 2))))
        (call $exit (local.get $refused))))"#;

/// A component that has pollables, drops them, blocks on them and polls many at once, as `body`
/// says; `realloc` is the body of its allocator.
fn component(realloc: &str, body: &str) -> String {
    format!(
        r#"(component
        (import "wasi:io/poll@0.2.0" (instance $poll
            (export "pollable" (type $p (sub resource)))
            (export "[method]pollable.block" (func (param "self" (borrow $p))))
            (export "poll" (func (param "in" (list (borrow $p))) (result (list u32))))))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
            (alias outer 1 $pollable (type $p))
            (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
        (core module $libc
            (memory (export "memory") 256)
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) {realloc}))
        (core instance $libc (instantiate $libc))
        (alias core export $libc "memory" (core memory $memory))
        (alias core export $libc "realloc" (core func $realloc))
        (core func $drop (canon resource.drop $pollable))
        (core func $block (canon lower (func $poll "[method]pollable.block")))
        (core func $many
            (canon lower (func $poll "poll") (memory $memory) (realloc $realloc)))
        (core func $soon (canon lower (func $clock "subscribe-duration")))
        (core module $m
            (import "libc" "memory" (memory 256))
            (import "host" "drop" (func $drop (param i32)))
            (import "host" "block" (func $block (param i32)))
            (import "host" "poll" (func $poll (param i32 i32 i32)))
            (import "host" "soon" (func $soon (param i64) (result i32)))
            (func (export "run") (result i32) (local $one i32) (local $at i32)
                {body}
                (i32.const 0)))
        (core instance $i (instantiate $m
            (with "libc" (instance $libc))
            (with "host" (instance
                (export "drop" (func $drop)) (export "block" (func $block))
                (export "poll" (func $many)) (export "soon" (func $soon))))))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $run (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $run)))"#
    )
}

/// Memory at 4096, whatever is asked for.
const ALLOCATES: &str = "(i32.const 4096)";
const ONE: &str = "(local.set $one (call $soon (i64.const 0)))";

pub fn forged_handle() -> String {
    component(ALLOCATES, "(call $block (i32.const 7))")
}

pub fn dropped_handle() -> String {
    component(
        ALLOCATES,
        &format!("{ONE} (call $drop (local.get $one)) (call $block (local.get $one))"),
    )
}

pub fn dropped_twice() -> String {
    component(
        ALLOCATES,
        &format!("{ONE} (call $drop (local.get $one)) (call $drop (local.get $one))"),
    )
}

pub fn handle_flood() -> String {
    component(ALLOCATES, "(loop (drop (call $soon (i64.const 1000000000000))) (br 0))")
}

pub fn gigabyte_call() -> String {
    component(ALLOCATES, "(call $poll (i32.const 0) (i32.const 268435456) (i32.const 16))")
}

/// One handle, three million times.
pub fn one_handle_often() -> String {
    let mut body = String::from(ONE);
    let _ = write!(
        body,
        "(local.set $at (i32.const 65536))
        (loop
            (i32.store (local.get $at) (local.get $one))
            (local.set $at (i32.add (local.get $at) (i32.const 4)))
            (br_if 0 (i32.lt_u (local.get $at) (i32.const 12065536))))
        (call $poll (i32.const 65536) (i32.const 3000000) (i32.const 16))"
    );
    component(ALLOCATES, &body)
}

fn polls_one(realloc: &str) -> String {
    let body = format!(
        "{ONE} (i32.store (i32.const 0) (local.get $one))
        (call $poll (i32.const 0) (i32.const 1) (i32.const 16))"
    );
    component(realloc, &body)
}

pub fn endless_realloc() -> String {
    polls_one("(loop (br 0)) (i32.const 0)")
}

pub fn lying_realloc() -> String {
    polls_one("(i32.const -16)")
}
