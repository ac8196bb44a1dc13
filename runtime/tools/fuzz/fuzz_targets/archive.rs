//! Arbitrary bytes as an archive that a task brings along.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::archive(data));
