//! Ways to misbehave that need no particular function.

use std::hint::black_box;

use ostler_sdk::host::{clock, log, random};

/// Do what `mode` says. Returns for modes that are not among these, and for floods that the host
/// let pass.
pub fn misbehave(mode: &str) {
    match mode {
        "trap" => std::process::abort(),
        "panic" => panic(),
        "stack-overflow" => {
            black_box(recurse(black_box(1)));
        }
        "spin" => loop {
            black_box(0);
        },
        "hostcall-flood" => loop {
            black_box(clock::now());
        },
        "sleep" => sleep(1_000_000),
        "slow" => sleep(35),
        "stdout-flood" => loop {
            println!("flood");
        },
        "gigabyte-log" => log::info(gigabyte()),
        "memory-bomb" => loop {
            let mut block = vec![0_u8; 1 << 20];
            block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::mem::forget(black_box(block));
        },
        "log-flood" => {
            let line = "flood ".repeat(170);
            (0..100_000).for_each(|_| log::info(&line));
        }
        "random-flood" => loop {
            black_box(random::bytes(u32::MAX));
        },
        _ => {}
    }
}

#[expect(clippy::panic, reason = "what a panic says is to be seen")]
fn panic() {
    panic!("the reason stands\nin two lines\u{1b}[2J");
}

#[expect(clippy::disallowed_methods, reason = "a plugin must not wait, and this one does")]
fn sleep(seconds: u64) {
    std::thread::sleep(std::time::Duration::from_secs(seconds));
}

/// Text that is said to be longer than all memory.
#[expect(unsafe_code, reason = "no honest text is that long")]
pub fn gigabyte() -> &'static str {
    let short = "x".as_ptr();
    // SAFETY: none. Nothing here reads it; whoever does, reads what is not there.
    unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(short, 1 << 30)) }
}

/// Uses the stack of the WASM engine, not the one in linear memory; not a tail call in disguise.
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    if depth == u64::MAX {
        return 0;
    }
    recurse(depth + 1).rotate_left(3) ^ depth
}
