//! Constraints and affinities, with the short forms `version = "…"`, `regexp = "…"` and so on.

use crate::diagnostic::{Span, shown};
use crate::keys::Bounds::Whole;
use crate::keys::{Context, Given, keys};
use ostler_model::job::{Affinity, Constraint, Operator};

/// All words of operators; of one with several, the first is written.
const OPERATORS: [(&str, Operator); 18] = [
    ("=", Operator::Equal),
    ("==", Operator::Equal),
    ("is", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("not", Operator::NotEqual),
    ("<", Operator::Less),
    ("<=", Operator::LessOrEqual),
    (">", Operator::Greater),
    (">=", Operator::GreaterOrEqual),
    ("version", Operator::Version),
    ("semver", Operator::Semver),
    ("regexp", Operator::Regexp),
    ("set_contains", Operator::SetContainsAll),
    ("set_contains_all", Operator::SetContainsAll),
    ("set_contains_any", Operator::SetContainsAny),
    ("is_set", Operator::IsSet),
    ("is_not_set", Operator::IsNotSet),
    ("", Operator::Equal),
];

/// Nomad's operators on other allocations of the job.
const LATER: [&str; 2] = ["distinct_hosts", "distinct_property"];

/// Weight of an affinity without one.
pub(super) const PREFERRED: i8 = 50;

/// The keys of a constraint and of an affinity, which has a weight beside them.
macro_rules! rule_keys {
    ($name:ident: $what:literal { $($weight:tt)* } not_yet { $($later:tt)* }) => {
        keys! {
            struct $name: $what {
                /// What is looked at: `${attr.…}`, `${meta.…}`, `${node.…}`, `${device.…}`.
                left "attribute" / LTarget: Given<String>, "needed";
                /// How it is compared: `=`, `!=`, `<`, `<=`, `>`, `>=`, `version`, `semver`, `regexp`,
                /// `set_contains`, `set_contains_any`, `is_set`, `is_not_set`.
                operator / Operand: Given<String>, "`=`";
                /// What with; not needed by `is_set` and `is_not_set`.
                right "value" / RTarget: Given<String>, "needed";
                $($weight)*
                /// Short for the operator and the value.
                version: Given<String>, "none";
                /// Short for the operator and the value.
                semver: Given<String>, "none";
                /// Short for the operator and the value.
                regexp: Given<String>, "none";
                /// Short for the operator and the value.
                set_contains: Given<String>, "none";
                /// Short for the operator `set_contains` and the value.
                set_contains_all: Given<String>, "none";
                /// Short for the operator and the value.
                set_contains_any: Given<String>, "none";
            }
            not_yet { $($later)* }
        }

        impl $name {
            fn rule(self, cx: &mut Context<'_>) -> Option<Constraint> {
                let short = [
                    (Operator::Version, self.version),
                    (Operator::Semver, self.semver),
                    (Operator::Regexp, self.regexp),
                    (Operator::SetContainsAll, self.set_contains),
                    (Operator::SetContainsAll, self.set_contains_all),
                    (Operator::SetContainsAny, self.set_contains_any),
                ];
                rule($what, self.at, [self.left, self.right], self.operator, short, cx)
            }
        }

        impl From<&Constraint> for $name {
            fn from(rule: &Constraint) -> Self {
                Self {
                    left: rule.left.clone().into(),
                    operator: word(rule.operator).to_owned().into(),
                    right: rule.right.clone().into(),
                    ..Self::default()
                }
            }
        }
    };
}

rule_keys! {
    ConstraintKeys: "a constraint" {} not_yet { "distinct_hosts"; "distinct_property"; }
}
rule_keys! {
    AffinityKeys: "an affinity" {
        /// How much is preferred what fits; below 0, what does not. Not 0.
        weight / Weight: Given<i8> [Whole(-100, 100)] = PREFERRED;
    } not_yet {}
}

/// How an operator is written.
fn word(operator: Operator) -> &'static str {
    OPERATORS
        .iter()
        .find(|(_, known)| *known == operator)
        .map(|(word, _)| *word)
        .unwrap_or_default()
}

/// Decode `constraint` blocks.
pub(super) fn constraints(blocks: Vec<ConstraintKeys>, cx: &mut Context<'_>) -> Vec<Constraint> {
    blocks.into_iter().filter_map(|keys| keys.rule(cx)).collect()
}

/// Decode `affinity` blocks.
pub(super) fn affinities(blocks: Vec<AffinityKeys>, cx: &mut Context<'_>) -> Vec<Affinity> {
    let affinity = |keys: AffinityKeys| {
        let weight = keys.weight.value.unwrap_or(PREFERRED);
        if weight == 0 {
            let message = "an affinity of weight 0 has no effect; use −100 to 100 without 0";
            cx.error(keys.weight.at, message);
        }
        Some(Affinity { rule: keys.rule(cx)?, weight })
    };
    blocks.into_iter().filter_map(affinity).collect()
}

fn rule(
    what: &str,
    header: Span,
    [left, right]: [Given<String>; 2],
    operator: Given<String>,
    short: [(Operator, Given<String>); 6],
    cx: &mut Context<'_>,
) -> Option<Constraint> {
    let mut compared: Option<(Operator, String)> = None;
    for (of, given) in short {
        let key = given.key;
        let Some((text, at)) = given.placed() else { continue };
        if compared.is_some() || operator.value.is_some() || right.value.is_some() {
            cx.error(at, format!("{what} compares once; use {key} or operator and value"));
        }
        compared = Some((of, text));
    }
    let (operator, value) = match compared {
        Some(compared) => compared,
        None => {
            let operator = self::operator(operator, cx)?;
            let unary = matches!(operator, Operator::IsSet | Operator::IsNotSet);
            if right.value.is_none() && !unary && !right.was_given {
                return cx.refuse(header, format!("{what} needs a {} to compare with", right.key));
            }
            (operator, right.value.unwrap_or_default())
        }
    };
    if left.value.is_none() && !left.was_given {
        cx.error(header, format!("{what} needs an {} to look at", left.key));
    }
    Some(Constraint { left: left.value?, operator, right: value })
}

fn operator(given: Given<String>, cx: &mut Context<'_>) -> Option<Operator> {
    let Some((text, at)) = given.placed() else { return Some(Operator::Equal) };
    if let Some((_, operator)) = OPERATORS.iter().find(|(name, _)| *name == text) {
        return Some(*operator);
    }
    if LATER.contains(&text.as_str()) {
        return cx.refuse(at, format!("{text} is valid in Nomad, not supported by Ostler yet"));
    }
    let instead = cx.sink.nearest(&text, OPERATORS.iter().map(|(name, _)| *name));
    cx.sink.suggest(at, format!("{} is no operator of a constraint", shown(&text)), instead);
    None
}
