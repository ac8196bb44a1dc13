//! Ways to misbehave that need no particular function.

use std::hint::black_box;

use ostler_sdk::host::{clock, log, random};

/// Do what `mode` says. Returns for modes that are not among these, and for floods that the host
/// let pass.
pub fn misbehave(mode: &str) {
    match mode {
        "trap" => std::process::abort(),
        "stack-overflow" => {
            black_box(recurse(black_box(1)));
        }
        "spin" => loop {
            black_box(0);
        },
        "memory-bomb" => loop {
            let mut block = vec![0_u8; 1 << 20];
            block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::mem::forget(black_box(block));
        },
        "log-flood" => {
            let line = "flood ".repeat(170);
            (0..100_000).for_each(|_| log::info(&line));
        }
        "hostcall-flood" => loop {
            black_box(clock::now());
        },
        "random-flood" => loop {
            black_box(random::bytes(u32::MAX));
        },
        _ => {}
    }
}

/// Uses the stack of the WASM engine, not the one in linear memory; not a tail call in disguise.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1).rotate_left(3) ^ depth
}
