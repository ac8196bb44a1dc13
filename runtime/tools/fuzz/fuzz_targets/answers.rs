//! Arbitrary bytes as answers of plugins, converted at the edge.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::answers(data));
