//! What a server says on a connection: frames of streams, answers, calls of its own.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::server_connection(data));
