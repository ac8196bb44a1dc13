//! Arbitrary bytes as ids of runs.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::run_id(data));
