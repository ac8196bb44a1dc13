//! Arbitrary bytes as configuration files of the agent.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::config(data));
