//! Arbitrary bytes as answers of the host in a recording.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::trace(data));
