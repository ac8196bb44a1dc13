//! Values as servers write them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::msgpack(data));
