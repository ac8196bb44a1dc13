//! Arbitrary bytes as the address of an artifact.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::source(data));
