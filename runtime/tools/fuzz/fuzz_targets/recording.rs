//! Arbitrary bytes as files of recorded calls.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::recording(data));
