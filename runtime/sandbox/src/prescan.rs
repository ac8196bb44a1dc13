//! A cheap look at untrusted bytes before a compile child is spent on them.
//!
//! Reads section headers only, so that it takes milliseconds even for tens of megabytes. Whether
//! the code is valid is for the compile child to find out.

use wasmparser::{ExternalKind, Parser, Payload};

use super::compile::CompileError;
use ostler_engine::Format;
use ostler_model::limits;

/// Which binary format `bytes` claim to have, from their first eight bytes.
///
/// # Errors
/// [`CompileError::NotWasm`] when they claim none.
pub fn detect_format(bytes: &[u8]) -> Result<Format, CompileError> {
    if Parser::is_component(bytes) {
        return Ok(Format::Component);
    }
    if Parser::is_core_wasm(bytes) {
        return Ok(Format::Module);
    }
    Err(CompileError::NotWasm { hint: what_else(bytes) })
}

/// What bytes look like that are not WebAssembly of a known version.
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

/// Refuse what is of the wrong format, too large, or has too many functions to compile.
///
/// # Errors
/// What is wrong with it.
pub fn prescan(bytes: &[u8], max: u64, want: Format) -> Result<(), CompileError> {
    let size = bytes.len() as u64;
    if size > max {
        return Err(CompileError::TooLarge { size, max });
    }
    match (detect_format(bytes)?, want) {
        (Format::Module, Format::Component) => return Err(CompileError::CoreModuleNotComponent),
        (Format::Component, Format::Module) => return Err(CompileError::ComponentNotModule),
        (Format::Component, Format::Component) | (Format::Module, Format::Module) => {}
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

/// What a program to be run does not export, if that can be told without compiling it: a module
/// `_start`, a component `wasi:cli/run`.
#[must_use]
pub fn missing_entry(bytes: &[u8], format: Format) -> Option<&'static str> {
    let (mut depth, mut found) = (0_u32, false);
    for payload in Parser::new(0).parse_all(bytes) {
        // What is damaged is for the compiler to say.
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
        (false, Format::Module) => Some("_start"),
        (false, Format::Component) => Some("wasi:cli/run"),
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
        assert_eq!(detect_format(MODULE).unwrap(), Format::Module);
        assert_eq!(detect_format(COMPONENT).unwrap(), Format::Component);
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
        let wrong = prescan(MODULE, limits::PLUGIN_FILE_BYTES_MAX, Format::Component);
        assert!(matches!(wrong, Err(CompileError::CoreModuleNotComponent)));
        let wrong = prescan(COMPONENT, limits::TASK_FILE_BYTES_MAX, Format::Module);
        assert!(matches!(wrong, Err(CompileError::ComponentNotModule)));
    }

    #[test]
    fn a_file_beyond_the_limit_is_refused_before_it_is_read() {
        let mut bytes = MODULE.to_vec();
        bytes.resize(usize::try_from(limits::PLUGIN_FILE_BYTES_MAX).unwrap() + 1, 0);
        let refused = prescan(&bytes, limits::PLUGIN_FILE_BYTES_MAX, Format::Module);
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
        let refused = prescan(&bytes, limits::TASK_FILE_BYTES_MAX, Format::Module);
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
            (r#"(module (func (export "_start")))"#, Format::Module, None),
            (r#"(module (func (export "start")))"#, Format::Module, Some("_start")),
            (r#"(module (memory (export "_start") 1))"#, Format::Module, Some("_start")),
            (nested, Format::Component, Some("wasi:cli/run")),
            (
                r#"(component (instance $i) (export "wasi:cli/run@0.2.0" (instance $i)))"#,
                Format::Component,
                None,
            ),
        ] {
            assert_eq!(missing(text, format), expected, "{text}");
        }
        assert_eq!(missing_entry(b"\0asm\x01\0\0\0\xff", Format::Module), None);
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
            let (head, format, other) = match component {
                true => (COMPONENT, Format::Component, Format::Module),
                false => (MODULE, Format::Module, Format::Component),
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
