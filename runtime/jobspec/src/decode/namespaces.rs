//! `namespace` blocks of the agent's configuration.

use std::collections::{BTreeMap, BTreeSet};

use super::named;
use crate::keys::{Context, Given, keys};
use ostler_model::ids::Namespace;

keys! {
    struct NamespaceKeys: "a namespace block", label Name {
        /// For people.
        description: Given<String>, "none";
    }
}

/// What people say of each, by name.
pub(super) fn namespaces(
    blocks: Vec<NamespaceKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<Namespace, String> {
    let (mut names, mut namespaces) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks {
        cx.unique(&mut names, "a namespace", &keys.label);
        let description = keys.description.value.unwrap_or_default();
        if let Some(name) = named(Namespace::new(&keys.label.name), keys.label.span, cx) {
            namespaces.entry(name).or_insert(description);
        }
    }
    namespaces
}
