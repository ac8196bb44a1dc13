//! Every key in the labelled blocks of the agent's configuration, and in the trust file, is read by somebody:
//! with another value the configuration is another one. The other keys are tried where a reload is
//! (`cli/agent/reload_keys_tests.rs`).

use std::path::Path;

use super::super::{BlockForm, BlockSchema, Field, FieldBounds, FieldShape, Keys as _};
use super::{AgentKeys, TrustFileKeys};
use crate::{Syntax, parse_agent_config, parse_trust_file};

const ZEROES: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const ONES: &str = "1111111111111111111111111111111111111111111111111111111111111111";
/// A key as `minisign` writes it; its id stands at the beginning.
const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";

/// Two values of a key.
fn values(schema: &BlockSchema, field: &Field) -> [String; 2] {
    let own = |one: &str, other: &str| [one, other].map(str::to_owned);
    match (schema.what, field.hcl) {
        ("a plugin block", "source") => own("\"oci://r.example/p:1\"", "\"oci://r.example/p:2\""),
        ("a plugin block", "digest") => [ZEROES, ONES].map(|digest| format!("\"sha256:{digest}\"")),
        ("a plugin block", "upgrade") => own("\"manual\"", "\"auto\""),
        ("grants", "connect") => own("[\"h:1\"]", "[\"h:2\"]"),
        ("grants", "deny") => own("[\"wasm_task\"]", "[\"command\"]"),
        ("grants", "groups") => own("[\"v/gpu/a\"]", "[\"v/gpu/b\"]"),
        ("grants", "programs" | "dirs") => own("[\"/a\"]", "[\"/b\"]"),
        ("isolation", "base" | "hidden" | "mounts") => own("[\"/a\"]", "[\"/b\"]"),
        ("isolation", "without") => own("[\"pids\"]", "[\"ipc\"]"),
        ("device_nodes", "permissions") => own("\"r\"", "\"rw\""),
        ("failure", "retry_max") => own("\"30m\"", "\"40m\""),
        ("failure", "quarantine") => own("\"manual\"", "\"7m\""),
        ("a host volume", "path") => own("\"/a\"", "\"/b\""),
        ("a host network", "cidr") => own("\"10.1.0.0/16\"", "\"10.2.0.0/16\""),
        ("a host network", "reserved_ports") => own("\"22\"", "\"23\""),
        ("a token block", "sha256") => [ZEROES, ONES].map(|digest| format!("{digest:?}")),
        ("a token block", "policies") => own("[\"read\"]", "[\"submit\"]"),
        ("a key block" | "a digest block", "kinds") => own("[\"driver\"]", "[\"device\"]"),
        ("a key block", "public_key") => {
            [KEY.to_owned(), KEY.replace("RWQf", "RWQg")].map(|key| format!("{key:?}"))
        }
        _ => of_shape(field),
    }
}

fn of_shape(field: &Field) -> [String; 2] {
    let own = |one: &str, other: &str| [one, other].map(str::to_owned);
    match (field.shape, field.bounds) {
        (FieldShape::Bool, _) => own("true", "false"),
        (FieldShape::Integer, FieldBounds::Whole(least, _)) => {
            [least, least + 1].map(|n| n.to_string())
        }
        (FieldShape::Duration, FieldBounds::Time(least, _)) => {
            let millis = least.as_millis().max(1_000);
            [millis, millis + 1_000].map(|time| format!("\"{time}ms\""))
        }
        (FieldShape::Word(words), _) => [words[0], words[1]].map(|word| format!("{word:?}")),
        (FieldShape::TextList, _) => own("[\"X\"]", "[\"Y\"]"),
        (FieldShape::TextLists, _) => own("[[\"x\"]]", "[[\"y\"]]"),
        (FieldShape::Text, _) => own("\"x\"", "\"y\""),
        (FieldShape::Free, _) => own("{ a = 1 }", "{ a = 2 }"),
        _ => panic!("no values of {}", field.hcl),
    }
}

/// What a block needs beside the key.
fn beside(what: &str, key: &str) -> &'static str {
    match (what, key) {
        ("grants", "users" | "programs") => "process = true",
        ("grants", "dirs") => "process = true\nprograms = [\"/p\"]",
        ("isolation", _) => "",
        ("a token block", "policies") => "secret_file = \"/s\"",
        ("a token block", _) => "policies = [\"read\"]",
        ("a host network", "reserved_ports") => "interface = \"lo\"",
        ("a host volume", "read_only") => "path = \"/v\"",
        ("a key block", "plugins" | "kinds" | "revoked") => {
            "public_key = \"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\""
        }
        _ => "",
    }
}

/// The label of a block.
fn label(schema: &BlockSchema) -> String {
    match schema.what {
        "a digest block" => format!("sha256:{ZEROES}"),
        "files" | "command" | "device_nodes" => "/dev/x".to_owned(),
        "a registry block" => "r.example".to_owned(),
        _ => "x".to_owned(),
    }
}

/// Tries every key below `schema`, whose block stands between `open` and `close`.
fn unnoticed(
    schema: &'static BlockSchema,
    (open, close): (&str, &str),
    labelled: bool,
    read: &dyn Fn(&str) -> Result<String, String>,
    found: &mut Vec<String>,
) {
    for field in schema.fields {
        if let FieldShape::Block { schema: inner, form } = field.shape {
            let is_named =
                matches!(form, BlockForm::List | BlockForm::ByName) && inner.label.is_some();
            let name = if is_named {
                format!("{} {:?}", field.hcl, label(inner))
            } else {
                field.hcl.to_owned()
            };
            let more = match (inner.what, field.hcl) {
                ("isolation", _) => "process = true\n",
                ("a token block", _) => "enabled = true\n",
                _ => "",
            };
            let open = format!("{open}{more}{name} {{\n");
            unnoticed(inner, (&open, &format!("}}\n{close}")), labelled || is_named, read, found);
            continue;
        }
        if !labelled || matches!(field.shape, FieldShape::Unsupported { .. } | FieldShape::Served) {
            continue;
        }
        let name = field.name(Syntax::Hcl);
        let more = beside(schema.what, name);
        let outcomes = values(schema, field)
            .map(|value| read(&format!("{open}{more}\n{name} = {value}\n{close}")));
        match &outcomes {
            [Ok(one), Ok(other)] if one != other => {}
            _ => found.push(format!("{}: {name}: {outcomes:?}", schema.what)),
        }
    }
}

#[test]
fn every_key_in_a_labelled_block_of_the_configuration_changes_it() {
    let mut found = Vec::new();
    unnoticed(
        AgentKeys::SCHEMA,
        ("", ""),
        false,
        &|text| {
            let read = parse_agent_config(text.as_bytes(), Path::new("/etc/agent.hcl"));
            read.map(|config| format!("{config:?}")).map_err(|wrong| format!("{wrong} in {text}"))
        },
        &mut found,
    );
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn every_key_of_the_trust_file_changes_it() {
    let mut found = Vec::new();
    unnoticed(
        TrustFileKeys::SCHEMA,
        ("", ""),
        true,
        &|text| {
            let read = parse_trust_file(text.as_bytes(), Path::new("/etc/trust.hcl"));
            read.map(|file| format!("{file:?}")).map_err(|wrong| format!("{wrong} in {text}"))
        },
        &mut found,
    );
    assert_eq!(found, Vec::<String>::new());
}
