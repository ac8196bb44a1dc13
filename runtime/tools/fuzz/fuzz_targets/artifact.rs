//! Arbitrary bytes as manifests and headers of a registry.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ostler_fuzz::artifact(data));
