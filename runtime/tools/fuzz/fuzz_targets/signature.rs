//! Arbitrary bytes as signatures of plugins.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::signature(data));
