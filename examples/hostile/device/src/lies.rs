//! Answers that no honest program can make: their memory is not what it claims to be.

use ostler_sdk::device::prelude::*;

/// Texts that begin a line of their own, steer the terminal and turn the writing direction.
pub const FORGED: &str =
    "well\n2026-01-01T00:00:00Z ERROR FORGED\r\u{1b}[2J\u{202e}txt.exe\u{2028}end";

/// Instances whose ids are not text, lie in one another, or reach beyond all memory.
#[expect(unsafe_code, reason = "these are lies about memory")]
pub fn instances(mode: &str, gigabyte: &'static str) -> Vec<Instance> {
    // Never freed: the host ends this instance.
    let text = String::leak("x".repeat(1 << 20));
    let at = text.as_mut_ptr();
    // SAFETY: none, on purpose. The host is who reads it.
    let id = |from: *mut u8, len: usize| unsafe { String::from_raw_parts(from, len, len) };
    match mode {
        "bad-utf8" => {
            // SAFETY: none, on purpose.
            unsafe { at.write(0xff) };
            vec![Instance::healthy(id(at, 8))]
        }
        // Each a mebibyte, all the same one: a gibibyte of text in a mebibyte of memory.
        "overlapping" => (0..1_024).map(|_| Instance::healthy(id(at, 1 << 20))).collect(),
        "gigabyte" => vec![Instance::healthy(id(gigabyte.as_ptr().cast_mut(), gigabyte.len()))],
        _ => {
            let one: &mut [Instance] = Vec::leak(vec![Instance::healthy("a")]);
            let many = usize::MAX / size_of::<Instance>() / 4;
            // SAFETY: none, on purpose.
            unsafe { Vec::from_raw_parts(one.as_mut_ptr(), many, many) }
        }
    }
}

/// A schema that refers to its parts twice, those to theirs, and so on: 2^`depth` to look at.
pub fn exploding_schema(depth: u32) -> String {
    let part = |n| {
        let next = n + 1;
        format!(
            r##""d{n}":{{"allOf":[{{"$ref":"#/$defs/d{next}"}},{{"$ref":"#/$defs/d{next}"}}]}}"##
        )
    };
    let parts: Vec<String> = (0..depth).map(part).collect();
    format!(
        r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{depth}":{{"type":"object"}}}}}}"##,
        parts.join(",")
    )
}

/// A schema of so many patterns, each some megabytes when it is compiled.
pub fn pattern_schema(count: u32) -> String {
    let patterns: Vec<String> =
        (0..count).map(|n| format!(r#"{{"pattern":"^[a-z]{{{n},9999}}$"}}"#)).collect();
    format!(r#"{{"anyOf":[{}]}}"#, patterns.join(","))
}

/// Measurements of the one group.
pub fn measured(instances: Vec<InstanceStats>) -> GroupStats {
    GroupStats {
        vendor: "hostile".to_owned(),
        type_: "thing".to_owned(),
        name: "one".to_owned(),
        instances,
    }
}
