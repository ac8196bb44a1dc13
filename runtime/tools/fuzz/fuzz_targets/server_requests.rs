//! What servers ask of a node.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::server_requests(data));
