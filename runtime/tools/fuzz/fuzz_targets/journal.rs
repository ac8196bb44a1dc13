//! Arbitrary bytes as the journal beside a state file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::journal(data));
