//! Tasks and configurations as a stock client hands them to a plugin.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::nomad_task(data));
