//! Arbitrary bytes as handles that plugins return.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::handles(data));
