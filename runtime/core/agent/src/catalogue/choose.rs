//! Decides which of several plugins that give themselves the same name is used.
//!
//! ```text
//! a configured block  ─ beats ─►  none        then the one whose block has the name, then
//! file of a block, built-in  ─ beats ─►  plugin_dir         then the higher version, then
//!                                                           the name of the block
//! ```
//! The configuration decides whom a name belongs to: no plugin takes a name by a higher version.

use std::cmp::{Ordering, Reverse};

use ostler_model::plugin::PluginKind;
use ostler_model::trust::PluginSource;

/// A plugin that could be used under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) kind: PluginKind,
    /// The name the plugin gives itself.
    pub(super) name: String,
    pub(super) version: String,
    /// The configuration has a block for it.
    pub(super) configured: bool,
    /// Where the plugin comes from. A file of the plugin directory comes after all others.
    pub(super) source: PluginSource,
    /// The path or reference of the plugin, for people.
    pub(super) place: String,
    /// Name of the plugin's block.
    pub(super) block: String,
}

impl Contender {
    /// The order of preference: the greater contender is preferred.
    fn order(&self, other: &Self) -> Ordering {
        let rank = |one: &Self| {
            let found = one.source == PluginSource::PluginDir;
            (one.configured, one.block == one.name, !found, version(&one.version), one.source)
        };
        let by_name = || Reverse(&self.block).cmp(&Reverse(&other.block));
        rank(self).cmp(&rank(other)).then_with(by_name)
    }
}

/// The version in a text. A text that is no version is below every version.
fn version(text: &str) -> Option<semver::Version> {
    semver::Version::parse(text).ok()
}

/// For each contender: `None` when it is used, else why not.
pub(super) fn choose(contenders: &[Contender]) -> Vec<Option<String>> {
    let best = |one: &Contender| {
        let rivals =
            contenders.iter().filter(|other| (other.kind, &other.name) == (one.kind, &one.name));
        rivals.max_by(|a, b| a.order(b))
    };
    contenders
        .iter()
        .map(|one| {
            best(one).filter(|best| one.order(best).is_ne()).map(|best| explain_choice(one, best))
        })
        .collect()
}

fn explain_choice(loser: &Contender, winner: &Contender) -> String {
    let why = if winner.configured != loser.configured {
        "and the configuration has a block for it".to_owned()
    } else if (winner.block == winner.name) != (loser.block == loser.name) {
        format!("and its block or file is called {}", winner.name)
    } else if winner.source != loser.source && loser.source == PluginSource::PluginDir {
        "and a file in plugin_dir replaces another plugin only if a block says so".to_owned()
    } else if version(&winner.version) != version(&loser.version) {
        format!("which is newer than {}", loser.version)
    } else {
        match (winner.source, loser.source) {
            (PluginSource::File | PluginSource::Oci, PluginSource::BuiltIn) => {
                "and a block of the configuration names its file".to_owned()
            }
            _ => format!("and its block {} comes first", winner.block),
        }
    };
    format!(
        "another plugin already calls itself {}: that of {} has version {}, {why}",
        loser.name, winner.place, winner.version
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    fn one(block: &str, version: &str, configured: bool, source: PluginSource) -> Contender {
        Contender {
            kind: PluginKind::Driver,
            name: "exec".to_owned(),
            version: version.to_owned(),
            configured,
            source,
            place: format!("/{block}"),
            block: block.to_owned(),
        }
    }

    /// The block of the one that is used; there is exactly one.
    fn used(contenders: &[Contender]) -> String {
        let used: Vec<_> = contenders
            .iter()
            .zip(choose(contenders))
            .filter(|(_, refused)| refused.is_none())
            .map(|(one, _)| one.block.clone())
            .collect();
        assert_eq!(used.len(), 1, "{used:?}");
        used[0].clone()
    }

    #[test]
    fn no_version_lets_a_file_of_the_plugin_directory_take_a_name() {
        use PluginSource::{BuiltIn, File, PluginDir};
        for version in ["0.9.0", "1.0.0", "99.0.0", "newest"] {
            let built_in = one("exec", "1.0.0", false, BuiltIn);
            let elsewhere = one("built-in", "1.0.0", false, BuiltIn);
            let same_name = one("exec", version, false, PluginDir);
            let other = one("file", version, false, PluginDir);
            assert_eq!(used(&[same_name.clone(), built_in.clone()]), "exec");
            assert_eq!(choose(&[built_in.clone(), same_name])[0], None, "{version}");
            assert_eq!(used(&[other.clone(), built_in]), "exec");
            assert_eq!(used(&[other, elsewhere]), "built-in", "whatever its block is called");
        }
        let configured = one("exec", "1.0.0", true, File);
        assert_eq!(
            used(&[one("mine", "2.0.0", true, File), configured]),
            "exec",
            "it has the name"
        );
        let (old, new) = (one("a", "0.9.0", true, File), one("b", "0.10.0", true, File));
        assert_eq!(used(&[old, new]), "b", "the newer of two of other names");
    }

    #[test]
    fn a_configured_block_beats_a_higher_version() {
        let found = one("found", "2.0.0", false, PluginSource::PluginDir);
        let named = one("named", "1.0.0", true, PluginSource::File);
        let refused = choose(&[found.clone(), named]);
        let reason = refused[0].as_ref().unwrap();
        assert!(reason.contains("/named has version 1.0.0"), "{reason}");
        assert!(reason.contains("a block for it"), "{reason}");
        assert_eq!(refused[1], None);
        let newer = one("newer", "1.1.0", true, PluginSource::File);
        let named = one("named", "1.0.0", true, PluginSource::File);
        let refused = choose(&[found, named, newer]);
        assert!(refused[1].as_ref().unwrap().contains("newer than 1.0.0"), "{refused:?}");
    }

    #[test]
    fn a_driver_and_a_device_plugin_may_have_one_name() {
        let driver = one("a", "1.0.0", false, PluginSource::BuiltIn);
        let device =
            Contender { kind: PluginKind::Device, ..one("b", "2.0.0", true, PluginSource::File) };
        assert_eq!(choose(&[driver, device]), [None, None]);
    }

    proptest! {
        #[test]
        fn the_choice_does_not_depend_on_the_order_and_every_loser_hears_why(
            given in prop::collection::vec(
                ("[a-c]", 0u64..3, any::<bool>(), 0u8..3, any::<bool>()), 1..8),
            turn in 0usize..8
        ) {
            let sources = [PluginSource::BuiltIn, PluginSource::PluginDir, PluginSource::File];
            let mut contenders: Vec<Contender> = given
                .into_iter()
                .enumerate()
                .map(|(index, (name, minor, configured, source, device))| Contender {
                    kind: if device { PluginKind::Device } else { PluginKind::Driver },
                    name,
                    ..one(&index.to_string(), &format!("0.{minor}.0"), configured,
                        sources[source as usize])
                })
                .collect();
            let told = |contenders: &[Contender]| {
                let mut told: Vec<_> = contenders
                    .iter()
                    .zip(choose(contenders))
                    .map(|(one, reason)| (one.block.clone(), reason))
                    .collect();
                told.sort();
                told
            };
            let before = told(&contenders);
            let names: std::collections::BTreeSet<_> =
                contenders.iter().map(|one| (one.kind.to_string(), one.name.clone())).collect();
            prop_assert_eq!(before.iter().filter(|(_, r)| r.is_none()).count(), names.len());
            let turn = turn % contenders.len();
            contenders.rotate_left(turn);
            prop_assert_eq!(before, told(&contenders));
        }
    }
}
