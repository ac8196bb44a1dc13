//! Arbitrary bytes as trust files.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::trust(data));
