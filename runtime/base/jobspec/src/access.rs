//! Nomad's access policies. A node reads only the rules for namespaces in them.

use std::collections::BTreeSet;
use std::path::Path;

use ostler_model::limits::ACCESS_POLICY_BYTES_MAX;

use crate::diagnostic::{Diagnostics, Sink, quote_text};
use crate::tree::{Body, Item, SpannedKey, SpannedValue, ValueKind};
use crate::{Inputs, Syntax, hcl, json, text};

/// The rule of a policy for one namespace, or for those that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRule {
    /// The name of the namespace, or a pattern with `*` for several.
    pub namespace: String,
    /// The capabilities that are listed by name. Those that a word such as `policy = "write"` stands for
    /// are not included.
    pub capabilities: BTreeSet<String>,
    /// Whether everything is refused in the namespace.
    pub denied: bool,
}

/// Read the rules of a policy, in HCL or in its JSON form. Rules for anything but namespaces are skipped.
///
/// # Errors
/// All problems of the text, with their places; never empty. A policy with problems allows nothing.
pub fn namespace_rules(policy: &str) -> Result<Vec<NamespaceRule>, Diagnostics> {
    let file = Path::new("the policy");
    let read = text::read_whole(
        policy.as_bytes(),
        file,
        ACCESS_POLICY_BYTES_MAX,
        "the policy",
        |text, sink| {
            let body = match Syntax::guess(text, file) {
                Syntax::Hcl => hcl::read(text, &Inputs::default(), sink)?,
                Syntax::Json => Body::from_members(members(json::value(text, sink)?, sink)?),
            };
            let namespaces = body.items.into_iter().filter(|item| item.key().name == "namespace");
            Some(namespaces.flat_map(|item| item_rules(item, sink)).collect())
        },
    );
    read.map(|(rules, _, _)| rules)
}

fn members(value: SpannedValue, sink: &mut Sink) -> Option<Vec<(SpannedKey, SpannedValue)>> {
    match value.kind {
        ValueKind::Object(members) => Some(members),
        kind => sink.refuse(value.span, format!("an object is needed, not {}", kind.describe())),
    }
}

/// The objects of a value that is one object or a list of objects, as the JSON form of HCL writes a block.
fn objects(value: SpannedValue, sink: &mut Sink) -> Vec<Vec<(SpannedKey, SpannedValue)>> {
    let all = match value.kind {
        ValueKind::List(items) => items,
        kind => vec![SpannedValue { kind, span: value.span }],
    };
    all.into_iter().filter_map(|value| members(value, sink)).collect()
}

fn item_rules(item: Item, sink: &mut Sink) -> Vec<NamespaceRule> {
    match item {
        Item::Block(block) => {
            let [name] = block.labels.as_slice() else {
                sink.error(block.key.span, "a namespace has one name");
                return Vec::new();
            };
            let said = block.body.items.into_iter().filter_map(|item| match item {
                Item::Attribute(attribute) => Some((attribute.key, attribute.value)),
                // What it says of variables, for example.
                Item::Block(_) => None,
            });
            vec![rule(name, said, sink)]
        }
        Item::Attribute(attribute) => {
            let named = objects(attribute.value, sink).into_iter().flatten().collect::<Vec<_>>();
            let mut rules = Vec::new();
            for (name, value) in named {
                for said in objects(value, sink) {
                    rules.push(rule(&name, said, sink));
                }
            }
            rules
        }
    }
}

fn rule(
    name: &SpannedKey,
    said: impl IntoIterator<Item = (SpannedKey, SpannedValue)>,
    sink: &mut Sink,
) -> NamespaceRule {
    let (mut capabilities, mut denied) = (BTreeSet::new(), false);
    for (key, value) in said {
        match key.name.as_str() {
            "policy" => denied |= text_of(value, sink).is_some_and(|word| word == "deny"),
            "capabilities" => {
                let ValueKind::List(items) = value.kind else {
                    sink.error(
                        value.span,
                        format!("capabilities of {} are not a list", quote_text(&name.name)),
                    );
                    continue;
                };
                capabilities.extend(items.into_iter().filter_map(|item| text_of(item, sink)));
            }
            _ => {}
        }
    }
    denied |= capabilities.contains("deny");
    NamespaceRule { namespace: name.name.clone(), capabilities, denied }
}

fn text_of(value: SpannedValue, sink: &mut Sink) -> Option<String> {
    match value.kind {
        ValueKind::Text(text) => Some(text),
        kind => sink.refuse(value.span, format!("a text is needed, not {}", kind.describe())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn rule(namespace: &str, capabilities: &[&str], denied: bool) -> NamespaceRule {
        let capabilities = capabilities.iter().map(|&one| one.to_owned()).collect();
        NamespaceRule { namespace: namespace.to_owned(), capabilities, denied }
    }

    #[test]
    fn what_is_said_of_namespaces_is_read_and_the_rest_passed_over() {
        let policy = r#"
            # Who operates.
            namespace "default" {
              policy = "write"
              capabilities = ["alloc-node-exec", "read-logs"]
              variables {
                path "*" {
                  capabilities = ["write"]
                }
              }
            }
            namespace "dev-*" { policy = "deny" }
            namespace "x" { capabilities = ["deny"] }
            node { policy = "read" }
            host_volume "*" { policy = "write" }
        "#;
        let expected = [
            rule("default", &["alloc-node-exec", "read-logs"], false),
            rule("dev-*", &[], true),
            rule("x", &["deny"], true),
        ];
        assert_eq!(namespace_rules(policy).unwrap(), expected);
        assert_eq!(namespace_rules("").unwrap(), []);
    }

    #[test]
    fn both_json_forms_say_the_same() {
        let expected = [rule("default", &["alloc-node-exec"], false)];
        let said = r#"{"policy": "read", "capabilities": ["alloc-node-exec"]}"#;
        for policy in [
            format!(r#"{{"namespace": {{"default": {said}}}}}"#),
            format!(r#"{{"namespace": [{{"default": [{said}]}}], "agent": {{"policy": "read"}}}}"#),
        ] {
            assert_eq!(namespace_rules(&policy).unwrap(), expected, "{policy}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_no_rule() {
        for policy in [
            "namespace \"a\" {",
            "namespace { policy = \"read\" }",
            "namespace \"a\" \"b\" { policy = \"read\" }",
            "namespace \"a\" { policy = 7 }",
            "namespace \"a\" { capabilities = \"alloc-node-exec\" }",
            "namespace \"a\" { capabilities = [[\"alloc-node-exec\"]] }",
            "namespace = \"a\"",
            "[]",
            "{\"namespace\": 7}",
        ] {
            assert!(namespace_rules(policy).is_err(), "{policy}");
        }
        let long = format!("# {}", "x".repeat(usize::try_from(ACCESS_POLICY_BYTES_MAX).unwrap()));
        assert!(namespace_rules(&long).is_err());
    }
}
