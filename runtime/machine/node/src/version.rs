//! Versions and what is required of them, for the operators `version` and `semver`.
//!
//! A requirement is a comma-separated list of `[operator] version`; all must hold. Operators:
//! `=` (also when none is given), `!=`, `>`, `>=`, `<`, `<=`, and for `version` also `~>` ("at
//! least this, and the same but for the last part given").
//!
//! `version` is lenient: `v1.2`, any number of parts, missing ones are 0. As in Nomad, an ordering
//! or `~>` requirement without a pre-release never admits a pre-release: `>= 5.10` refuses
//! `6.1.0-rc2`, and also the kernel release `6.1.0-13-amd64`, whose tail reads as one.
//! `semver` is strict: three parts, and pre-releases are ordered as Semantic Versioning 2.0 says.

use std::cmp::Ordering;

use serde::Serialize;

/// Most requirements in one constraint.
const REQUIREMENTS_MAX: usize = 16;
/// Longest version or requirement text, bytes.
const TEXT_BYTES_MAX: usize = 512;

/// The rules by which versions are read and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionStyle {
    /// The rules of the operator `version`.
    Lenient,
    /// The rules of the operator `semver`.
    Strict,
}

/// Why a version could not be compared with a requirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum VersionError {
    /// The value is no version.
    #[error("{text:?} is not a version such as 1.2.3")]
    Version {
        /// The text that is no version, cut.
        text: String,
    },
    /// The requirement cannot be read.
    #[error("{text:?} is not a version requirement such as \">= 1.2, < 2\"")]
    Requirement {
        /// The text that is no requirement, cut.
        text: String,
    },
}

/// Does `version` meet every part of `requirement`?
///
/// # Errors
/// [`VersionError`] when one of the two cannot be read.
pub fn satisfies(
    version: &str,
    requirement: &str,
    style: VersionStyle,
) -> Result<bool, VersionError> {
    let bad_version = || VersionError::Version { text: shorten(version) };
    let bad_requirement = || VersionError::Requirement { text: shorten(requirement) };
    let actual = Version::parse(version, style).ok_or_else(bad_version)?;
    if requirement.len() > TEXT_BYTES_MAX || requirement.split(',').count() > REQUIREMENTS_MAX {
        return Err(bad_requirement());
    }
    let mut all = true;
    for part in requirement.split(',') {
        let (relation, wanted) = split_relation(part.trim(), style);
        let wanted = Version::parse(wanted, style).ok_or_else(bad_requirement)?;
        all &= holds(&actual, relation, &wanted, style);
    }
    Ok(all)
}

/// Does a version miss a requirement of the operator `version` only because it is a pre-release,
/// while `semver` would accept it?
#[must_use]
pub fn fails_as_pre_release(version: &str, requirement: &str) -> bool {
    let (Some(actual), Some(_)) = (
        Version::parse(version, VersionStyle::Lenient),
        Version::parse(version, VersionStyle::Strict),
    ) else {
        return false;
    };
    let mut refused = false;
    for part in requirement.split(',').take(REQUIREMENTS_MAX) {
        let (relation, wanted) = split_relation(part.trim(), VersionStyle::Lenient);
        let Some(wanted) = Version::parse(wanted, VersionStyle::Lenient) else { return false };
        if matches!(relation, Relation::Pessimistic)
            || !holds(&actual, relation, &wanted, VersionStyle::Strict)
        {
            return false;
        }
        refused |= !holds(&actual, relation, &wanted, VersionStyle::Lenient);
    }
    refused
}

fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[derive(Clone, Copy)]
enum Relation {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Pessimistic,
}

fn split_relation(text: &str, style: VersionStyle) -> (Relation, &str) {
    const RELATIONS: [(&str, Relation); 7] = [
        (">=", Relation::GreaterOrEqual),
        ("<=", Relation::LessOrEqual),
        ("!=", Relation::NotEqual),
        ("~>", Relation::Pessimistic),
        ("=", Relation::Equal),
        (">", Relation::Greater),
        ("<", Relation::Less),
    ];
    for (sign, relation) in RELATIONS {
        if matches!((relation, style), (Relation::Pessimistic, VersionStyle::Strict)) {
            continue;
        }
        if let Some(rest) = text.strip_prefix(sign) {
            return (relation, rest.trim_start());
        }
    }
    (Relation::Equal, text)
}

fn holds(actual: &Version, relation: Relation, wanted: &Version, style: VersionStyle) -> bool {
    let order = actual.precedence(wanted);
    let admitted = style == VersionStyle::Strict || actual.pre_release_admitted(wanted);
    match relation {
        Relation::Equal => order == Ordering::Equal,
        Relation::NotEqual => order != Ordering::Equal,
        Relation::Greater => admitted && order == Ordering::Greater,
        Relation::GreaterOrEqual => admitted && order != Ordering::Less,
        Relation::Less => admitted && order == Ordering::Less,
        Relation::LessOrEqual => admitted && order != Ordering::Greater,
        Relation::Pessimistic => {
            let kept = wanted.given.saturating_sub(1).max(1);
            admitted && order != Ordering::Less && actual.same_start(wanted, kept)
        }
    }
}

struct Version {
    parts: Vec<u64>,
    /// Number of parts that were written, before any padding.
    given: usize,
    pre: semver::Prerelease,
}

impl Version {
    fn parse(text: &str, style: VersionStyle) -> Option<Self> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        match style {
            VersionStyle::Strict => {
                let version = semver::Version::parse(text).ok()?;
                let parts = vec![version.major, version.minor, version.patch];
                Some(Self { parts, given: 3, pre: version.pre })
            }
            VersionStyle::Lenient => Self::parse_lenient(text.strip_prefix('v').unwrap_or(text)),
        }
    }

    fn parse_lenient(text: &str) -> Option<Self> {
        let text = text.split('+').next().unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, tail) = text.split_at_checked(end)?;
        let parts: Vec<u64> =
            numbers.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let pre = lenient_pre_release(tail.strip_prefix('-').unwrap_or(tail))?;
        Some(Self { given: parts.len(), parts, pre })
    }

    fn part(&self, at: usize) -> u64 {
        self.parts.get(at).copied().unwrap_or(0)
    }

    fn numbers_order(&self, other: &Self) -> Ordering {
        let longest = self.parts.len().max(other.parts.len());
        (0..longest)
            .map(|at| self.part(at).cmp(&other.part(at)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    fn precedence(&self, other: &Self) -> Ordering {
        self.numbers_order(other).then_with(|| self.pre.cmp(&other.pre))
    }

    fn same_start(&self, other: &Self, count: usize) -> bool {
        (0..count).all(|at| self.part(at) == other.part(at))
    }

    fn pre_release_admitted(&self, wanted: &Self) -> bool {
        match (self.pre.is_empty(), wanted.pre.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => self.numbers_order(wanted).is_eq(),
        }
    }
}

/// The tail of a lenient version as a semantic pre-release. Characters that a pre-release cannot
/// have (`~`, `_`) become hyphens, and numbers lose their leading zeros.
fn lenient_pre_release(tail: &str) -> Option<semver::Prerelease> {
    if tail.is_empty() {
        return Some(semver::Prerelease::EMPTY);
    }
    let parts: Vec<String> = tail
        .split('.')
        .map(|part| {
            let clean: String =
                part.chars().map(|c| if c == '~' || c == '_' { '-' } else { c }).collect();
            clean.parse::<u64>().map_or(clean, |number| number.to_string())
        })
        .collect();
    semver::Prerelease::new(&parts.join(".")).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn lenient(version: &str, requirement: &str) -> bool {
        satisfies(version, requirement, VersionStyle::Lenient).unwrap()
    }

    fn strict(version: &str, requirement: &str) -> bool {
        satisfies(version, requirement, VersionStyle::Strict).unwrap()
    }

    #[test]
    fn all_parts_of_a_requirement_must_hold() {
        assert!(lenient("1.5", ">= 1.2, < 2"));
        assert!(!lenient("2.0.0", ">= 1.2, < 2"));
        assert!(lenient("v1.2.0", "1.2"));
        assert!(lenient("1.2.3.4", "> 1.2.3"));
        assert!(lenient("1.10", "> 1.9"));
        assert!(lenient("2", "!= 1"));
    }

    #[test]
    fn the_pessimistic_operator_keeps_all_but_the_last_part() {
        assert!(lenient("1.9", "~> 1.2"));
        assert!(!lenient("2.0", "~> 1.2"));
        assert!(lenient("1.2.9", "~> 1.2.3"));
        assert!(!lenient("1.3.0", "~> 1.2.3"));
        assert!(!lenient("1.2.2", "~> 1.2.3"));
        assert!(lenient("1.9", "~> 1"));
        assert!(!lenient("2", "~> 1"));
    }

    #[test]
    fn a_lenient_requirement_without_pre_release_refuses_pre_releases() {
        assert!(!lenient("1.3.0-beta1", ">= 1.2"));
        assert!(!lenient("6.1.0-13-amd64", ">= 5.10"));
        assert!(lenient("1.3.0-beta2", ">= 1.3.0-beta1"));
        assert!(!lenient("1.4.0-beta2", ">= 1.3.0-beta1"));
        assert!(lenient("1.3.0", "> 1.3.0-beta1"));
    }

    #[test]
    fn semver_orders_pre_releases_and_knows_no_pessimistic_operator() {
        assert!(strict("1.3.0-beta1", ">= 1.2.0"));
        assert!(!strict("1.3.0-beta1", ">= 1.3.0"));
        assert!(strict("1.0.0+build5", "= 1.0.0"));
        assert!(satisfies("1.0.0", "~> 1.0.0", VersionStyle::Strict).is_err());
        assert!(satisfies("1.0", ">= 1.0.0", VersionStyle::Strict).is_err());
    }

    #[test]
    fn what_is_no_version_is_an_error_that_says_which_side() {
        let error = |version, requirement| {
            satisfies(version, requirement, VersionStyle::Lenient).unwrap_err()
        };
        assert!(matches!(error("abc", ">= 1"), VersionError::Version { .. }));
        assert!(matches!(error("", ">= 1"), VersionError::Version { .. }));
        assert!(matches!(error("1..2", ">= 1"), VersionError::Version { .. }));
        assert!(matches!(error("1", ""), VersionError::Requirement { .. }));
        assert!(matches!(error("1", ">= 1,"), VersionError::Requirement { .. }));
        assert!(matches!(error("1", ">> 1"), VersionError::Requirement { .. }));
        let many = vec!["1"; 100].join(",");
        assert!(matches!(error("1", &many), VersionError::Requirement { .. }));
    }
}
