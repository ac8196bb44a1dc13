//! A cheap look at untrusted bytes before a compile child is spent on them.
//!
//! Only section headers are read, so that it takes milliseconds even for tens of megabytes. The
//! compile child finds out whether the code is valid.

use wasmparser::{ExternalKind, Parser, Payload};

use super::compile::CompileError;
use ostler_engine::WasmFormat;
use ostler_model::limits;

/// Which binary format `bytes` claim to have, from their first eight bytes.
///
/// # Errors
/// [`CompileError::NotWasm`] when they claim none.
pub fn detect_format(bytes: &[u8]) -> Result<WasmFormat, CompileError> {
    if Parser::is_component(bytes) {
        return Ok(WasmFormat::Component);
    }
    if Parser::is_core_wasm(bytes) {
        return Ok(WasmFormat::Module);
    }
    Err(CompileError::NotWasm { hint: what_else(bytes) })
}

/// A hint for people at what bytes are that are not WebAssembly of a known version.
#[must_use]
pub fn what_else(bytes: &[u8]) -> &'static str {
    let text = bytes.trim_ascii_start();
    if bytes.is_empty() {
        "it is empty"
    } else if bytes.starts_with(b"\0asm") {
        "its WebAssembly version is unknown"
    } else if bytes.starts_with(b"\x7fELF") {
        "it is a native program; build it for the target wasm32-wasip2"
    } else if bytes.starts_with(b"#!") {
        "it is a script"
    } else if text.starts_with(b"(component") || text.starts_with(b"(module") {
        "it is WebAssembly text; convert it to binary first"
    } else {
        "it does not begin with the bytes `\\0asm`"
    }
}

/// Refuse bytes that have the wrong format, are too large, or have too many functions to compile.
///
/// # Errors
/// What is wrong with the bytes.
pub fn prescan(bytes: &[u8], max: u64, want: WasmFormat) -> Result<(), CompileError> {
    let size = bytes.len() as u64;
    if size > max {
        return Err(CompileError::TooLarge { size, max });
    }
    match (detect_format(bytes)?, want) {
        (WasmFormat::Module, WasmFormat::Component) => {
            return Err(CompileError::CoreModuleNotComponent);
        }
        (WasmFormat::Component, WasmFormat::Module) => {
            return Err(CompileError::ComponentNotModule);
        }
        (WasmFormat::Component, WasmFormat::Component)
        | (WasmFormat::Module, WasmFormat::Module) => {}
    }
    let mut functions = 0u32;
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| CompileError::Invalid {
            message: format!("{} (at offset {:#x})", error.message(), error.offset()),
        })?;
        if let Payload::FunctionSection(section) = payload {
            functions = functions.saturating_add(section.count());
            if functions > limits::GUEST_FUNCTIONS_MAX {
                return Err(CompileError::TooManyFunctions {
                    found: functions,
                    max: limits::GUEST_FUNCTIONS_MAX,
                });
            }
        }
    }
    Ok(())
}

/// The entry point that a program does not export, if that can be told without compiling it. A
/// module needs `_start`, a component `wasi:cli/run`.
#[must_use]
pub fn missing_entry(bytes: &[u8], format: WasmFormat) -> Option<&'static str> {
    let (mut depth, mut found) = (0_u32, false);
    for payload in Parser::new(0).parse_all(bytes) {
        // The compiler says what is damaged.
        match payload.ok()? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ExportSection(exports) if depth == 0 => {
                for export in exports {
                    let export = export.ok()?;
                    found |= export.name == "_start" && export.kind == ExternalKind::Func;
                }
            }
            Payload::ComponentExportSection(exports) if depth == 0 => {
                for export in exports {
                    found |= export.ok()?.name.name.starts_with("wasi:cli/run@");
                }
            }
            _ => {}
        }
    }
    match (found, format) {
        (true, _) => None,
        (false, WasmFormat::Module) => Some("_start"),
        (false, WasmFormat::Component) => Some("wasi:cli/run"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    const MODULE: &[u8] = b"\0asm\x01\0\0\0";
    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn the_first_bytes_tell_modules_from_components() {
        assert_eq!(detect_format(MODULE).unwrap(), WasmFormat::Module);
        assert_eq!(detect_format(COMPONENT).unwrap(), WasmFormat::Component);
    }

    #[test]
    fn what_is_not_wasm_is_named() {
        for (bytes, word) in [
            (&b""[..], "empty"),
            (b"\x7fELF\x02", "native program"),
            (b"#!/bin/sh", "script"),
            (b"  (module)", "text"),
            (b"\0asm\x07\0\0\0", "version"),
            (b"hello", "does not begin"),
        ] {
            let text = detect_format(bytes).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_module_where_a_component_is_needed_is_told_so_and_the_other_way_round() {
        let wrong = prescan(MODULE, limits::PLUGIN_FILE_BYTES_MAX, WasmFormat::Component);
        assert!(matches!(wrong, Err(CompileError::CoreModuleNotComponent)));
        let wrong = prescan(COMPONENT, limits::TASK_FILE_BYTES_MAX, WasmFormat::Module);
        assert!(matches!(wrong, Err(CompileError::ComponentNotModule)));
    }

    #[test]
    fn a_file_beyond_the_limit_is_refused_before_it_is_read() {
        let mut bytes = MODULE.to_vec();
        bytes.resize(usize::try_from(limits::PLUGIN_FILE_BYTES_MAX).unwrap() + 1, 0);
        let refused = prescan(&bytes, limits::PLUGIN_FILE_BYTES_MAX, WasmFormat::Module);
        assert!(matches!(refused, Err(CompileError::TooLarge { .. })), "{refused:?}");
    }

    #[test]
    fn a_function_section_that_only_claims_a_million_functions_is_refused() {
        // Type section with one type `() -> ()`, function section of 1,000,001 times type 0.
        let mut bytes = MODULE.to_vec();
        bytes.extend([1, 4, 1, 0x60, 0, 0]);
        let count = leb(1_000_001);
        bytes.push(3);
        bytes.extend(leb(u32::try_from(count.len()).unwrap() + 1_000_001));
        bytes.extend(&count);
        bytes.resize(bytes.len() + 1_000_001, 0);
        let refused = prescan(&bytes, limits::TASK_FILE_BYTES_MAX, WasmFormat::Module);
        assert!(
            matches!(refused, Err(CompileError::TooManyFunctions { found: 1_000_001, .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn what_has_nothing_to_run_is_told_before_it_is_compiled() {
        let missing = |text: &str, format| missing_entry(&wat::parse_str(text).unwrap(), format);
        let nested = r#"(component (core module (func (export "_start"))))"#;
        for (text, format, expected) in [
            (r#"(module (func (export "_start")))"#, WasmFormat::Module, None),
            (r#"(module (func (export "start")))"#, WasmFormat::Module, Some("_start")),
            (r#"(module (memory (export "_start") 1))"#, WasmFormat::Module, Some("_start")),
            (nested, WasmFormat::Component, Some("wasi:cli/run")),
            (
                r#"(component (instance $i) (export "wasi:cli/run@0.2.0" (instance $i)))"#,
                WasmFormat::Component,
                None,
            ),
        ] {
            assert_eq!(missing(text, format), expected, "{text}");
        }
        assert_eq!(missing_entry(b"\0asm\x01\0\0\0\xff", WasmFormat::Module), None);
    }

    fn leb(mut value: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let low = u8::try_from(value & 0x7f).unwrap();
            value >>= 7;
            bytes.push(if value == 0 { low } else { low | 0x80 });
            if value == 0 {
                return bytes;
            }
        }
    }

    proptest! {
        #[test]
        fn after_the_right_beginning_any_bytes_are_fine_or_damaged(
            sections in prop::collection::vec((0_u8..14, prop::collection::vec(any::<u8>(), 0..20)), 0..5),
            tail in prop::collection::vec(any::<u8>(), 0..20),
            component: bool,
        ) {
            let (head, format, other) = if component {
                (COMPONENT, WasmFormat::Component, WasmFormat::Module)
            } else {
                (MODULE, WasmFormat::Module, WasmFormat::Component)
            };
            let mut bytes = head.to_vec();
            for (kind, content) in sections {
                bytes.extend([kind, u8::try_from(content.len()).unwrap()]);
                bytes.extend(content);
            }
            bytes.extend(tail);
            let max = limits::PLUGIN_FILE_BYTES_MAX;
            match prescan(&bytes, max, format) {
                Ok(()) => {
                    // A custom section changes nothing.
                    bytes.extend([0, 2, 1, b'x']);
                    prop_assert!(prescan(&bytes, max, format).is_ok());
                }
                Err(CompileError::Invalid { .. } | CompileError::TooManyFunctions { .. }) => {}
                Err(error) => prop_assert!(false, "{}", error),
            }
            prop_assert!(prescan(&bytes, max, other).is_err());
            let max = bytes.len() as u64 - 1;
            let large = matches!(prescan(&bytes, max, format), Err(CompileError::TooLarge { .. }));
            prop_assert!(large);
        }
    }
}
