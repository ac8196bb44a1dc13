//! Arbitrary bytes as the bytes of a component.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::plugin(data));
