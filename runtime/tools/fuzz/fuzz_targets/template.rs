//! Arbitrary bytes as templates.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::template(data));
