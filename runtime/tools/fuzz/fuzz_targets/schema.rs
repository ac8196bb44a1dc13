//! Arbitrary bytes as schemas of plugins' configurations.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::schema(data));
