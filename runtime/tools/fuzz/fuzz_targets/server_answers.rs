//! Answers of servers, allocations among them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::server_answers(data));
