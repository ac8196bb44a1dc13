//! `namespace` blocks of the agent's configuration.

use std::collections::{BTreeMap, BTreeSet};

use super::accept_name;
use crate::keys::{Context, Setting, keys};
use ostler_model::ids::Namespace;

keys! {
    struct NamespaceKeys: "a namespace block", label Name {
        /// For people.
        description: Setting<String>, "none";
    }
}

/// The descriptions of the namespaces, by name.
pub(super) fn namespaces(
    blocks: Vec<NamespaceKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<Namespace, String> {
    let (mut names, mut namespaces) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks {
        cx.add_unique(&mut names, "a namespace", &keys.label);
        let description = keys.description.value.unwrap_or_default();
        if let Some(name) = accept_name(Namespace::new(&keys.label.name), keys.label.span, cx) {
            namespaces.entry(name).or_insert(description);
        }
    }
    namespaces
}
