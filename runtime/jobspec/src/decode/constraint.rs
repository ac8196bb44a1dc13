//! Constraints and affinities, with the short forms `version = "…"`, `regexp = "…"` and so on.

use crate::diagnostic::{Span, shown};
use crate::keys::Bounds::Whole;
use crate::keys::{Context, Given, keys};
use ostler_model::job::{Affinity, Constraint, Operator, truth};
use ostler_model::limits::{
    CONSTRAINT_SIDE_BYTES_MAX, JOB_PATTERNS_BYTES_MAX, JOB_RULES_MAX, PATTERNS_OF_ONE_BYTES_MAX,
};
use ostler_patterns::Patterns;

/// What the constraints and affinities of a job cost up to here.
#[derive(Debug, Default)]
pub(crate) struct RulesRead {
    count: usize,
    patterns: Patterns,
    /// What the patterns cost to compile.
    price: usize,
}

/// All words of operators; of one with several, the first is written.
const OPERATORS: [(&str, Operator); 20] = [
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
    ("distinct_hosts", Operator::DistinctHosts),
    ("distinct_property", Operator::DistinctProperty),
    ("", Operator::Equal),
];

/// Weight of an affinity without one.
pub(super) const PREFERRED: i8 = 50;

/// The keys of a constraint and of an affinity, which has a weight beside them.
macro_rules! rule_keys {
    ($name:ident: $what:literal ($operators:literal, $unary:literal) { $($weight:tt)* } { $($short:tt)* }) => {
        keys! {
            struct $name: $what {
                /// What is looked at: `${attr.…}`, `${meta.…}`, `${node.…}`, `${device.…}`.
                left "attribute" / LTarget: Given<String>, "needed";
                /// How it is compared: `=`, `!=`, `<`, `<=`, `>`, `>=`, `version`, `semver`, `regexp`,
                /// `set_contains`, `set_contains_any`
                #[doc = $operators]
                operator / Operand: Given<String>, "`=`";
                /// What it is compared with
                #[doc = $unary]
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
                $($short)*
            }
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
    ConstraintKeys: "a constraint" (
        ", `is_set`, `is_not_set`; in a job or a group also `distinct_hosts`, `distinct_property`.",
        "; not needed by `is_set`, `is_not_set` and `distinct_hosts`. Of `distinct_property`: how many, 1 without it."
    ) {} {
        /// In a job or a group: a node has at most one allocation of it. The rest waits.
        distinct_hosts: Given<bool>, "none";
        /// In a job or a group: short for the attribute and the operator. Nodes of one value of this
        /// attribute have at most one allocation of it, or `value` many.
        distinct_property: Given<String>, "none";
    }
}
rule_keys! {
    AffinityKeys: "an affinity" (
        "; in a device also `is_set`, `is_not_set`.", "; not needed by `is_set` and `is_not_set`."
    ) {
        /// How much is preferred what fits; below 0, what does not. Not 0.
        weight / Weight: Given<i8> [Whole(-100, 100)] = PREFERRED;
    } {}
}

/// How an operator is written.
fn word(operator: Operator) -> &'static str {
    OPERATORS
        .iter()
        .find(|(_, known)| *known == operator)
        .map(|(word, _)| *word)
        .unwrap_or_default()
}

/// Decode `constraint` blocks of a task or a device.
pub(super) fn constraints(blocks: Vec<ConstraintKeys>, cx: &mut Context<'_>) -> Vec<Constraint> {
    let mut constraint = |keys: ConstraintKeys| {
        let at = keys.distinct_hosts.place().or(keys.distinct_property.place());
        let at = at.or(keys.operator.place()).unwrap_or(keys.at);
        let rule = keys.constraint(cx)?;
        if matches!(rule.operator, Operator::DistinctHosts | Operator::DistinctProperty) {
            let what = word(rule.operator);
            let message =
                format!("{what} is about whole allocations; write it into the group or the job");
            return cx.refuse(at, message);
        }
        Some(rule)
    };
    blocks.into_iter().filter_map(&mut constraint).collect()
}

/// Decode `constraint` blocks of a job or a group, which may be about its allocations.
pub(super) fn constraints_on_allocs(
    blocks: Vec<ConstraintKeys>,
    cx: &mut Context<'_>,
) -> Vec<Constraint> {
    blocks.into_iter().filter_map(|keys| keys.constraint(cx)).collect()
}

impl ConstraintKeys {
    fn constraint(mut self, cx: &mut Context<'_>) -> Option<Constraint> {
        let (at, key) = (self.right.at, self.right.key);
        match (self.distinct_hosts.clone().placed(), self.distinct_property.clone().placed()) {
            (None, None) => {}
            (Some((truth, at)), None) => {
                self.alone(at, "distinct_hosts", true, cx);
                let right = truth.to_string();
                return Some(Constraint {
                    left: String::new(),
                    operator: Operator::DistinctHosts,
                    right,
                });
            }
            (None, Some((property, at))) if property.trim().is_empty() => {
                return cx.refuse(at, "distinct_property needs an attribute to look at");
            }
            (None, Some((property, at))) => {
                self.alone(at, "distinct_property", false, cx);
                self.left = property.into();
                self.operator = word(Operator::DistinctProperty).to_owned().into();
            }
            (Some(_), Some((_, at))) => {
                return cx
                    .refuse(at, "a constraint is distinct_hosts or distinct_property, not both");
            }
        }
        let rule = self.rule(cx)?;
        let fits = match rule.operator {
            Operator::DistinctHosts => rule.right.is_empty() || truth(&rule.right).is_some(),
            Operator::DistinctProperty => {
                rule.right.is_empty() || rule.right.parse::<u64>().is_ok_and(|most| most > 0)
            }
            _ => true,
        };
        if !fits {
            let wanted = match rule.operator {
                Operator::DistinctHosts => "true or false",
                _ => "a whole number from 1",
            };
            let message = format!(
                "{key} of {} must be {wanted}, not {}",
                word(rule.operator),
                shown(&rule.right)
            );
            return cx.refuse(at, message);
        }
        Some(rule)
    }

    /// Report what stands beside a short form that says it all, or all but the value.
    fn alone(&self, at: Span, key: &str, all: bool, cx: &mut Context<'_>) {
        let given = |given: &Given<String>| given.value.is_some();
        let short = [&self.version, &self.semver, &self.regexp, &self.set_contains];
        let more = [&self.set_contains_all, &self.set_contains_any, &self.left, &self.operator];
        if short.into_iter().chain(more).any(given) || all && given(&self.right) {
            cx.error(
                at,
                format!("a constraint compares once; with {key} nothing else is compared"),
            );
        }
    }
}

/// Decode `affinity` blocks of a job, a group or a task. Not every operator prefers
/// one node to another.
pub(super) fn node_affinities(blocks: Vec<AffinityKeys>, cx: &mut Context<'_>) -> Vec<Affinity> {
    for keys in &blocks {
        let operator = keys.operator.value.as_deref().unwrap_or_default();
        let not_of_nodes = [
            "is_set",
            "is_not_set",
            word(Operator::DistinctHosts),
            word(Operator::DistinctProperty),
        ];
        if not_of_nodes.contains(&operator) {
            cx.error(keys.operator.at, format!("{operator} is no operator of an affinity"));
        }
    }
    affinities(blocks, cx)
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
    let mut compared: Option<(Operator, String, Span)> = None;
    for (of, given) in short {
        let key = given.key;
        let Some((text, at)) = given.placed() else { continue };
        if compared.is_some() || operator.value.is_some() || right.value.is_some() {
            cx.error(at, format!("{what} compares once; use {key} or operator and value"));
        }
        compared = Some((of, text, at));
    }
    let (operator, value, at) = match compared {
        Some(compared) => compared,
        None => {
            let operator = self::operator(operator, cx)?;
            let unary = matches!(
                operator,
                Operator::IsSet
                    | Operator::IsNotSet
                    | Operator::DistinctHosts
                    | Operator::DistinctProperty
            );
            if right.value.is_none() && !unary && !right.was_given {
                return cx.refuse(header, format!("{what} needs a {} to compare with", right.key));
            }
            (operator, right.value.unwrap_or_default(), right.at)
        }
    };
    if operator == Operator::DistinctHosts {
        if let Some(at) = left.place() {
            cx.error(at, format!("distinct_hosts looks at no {}; leave it out", left.key));
        }
        return Some(Constraint { left: String::new(), operator, right: value });
    }
    if left.value.is_none() && !left.was_given {
        cx.error(header, format!("{what} needs an {} to look at", left.key));
    }
    let left_at = left.at;
    let rule = Constraint { left: left.value?, operator, right: value };
    affordable(&rule, header, [left_at, at], cx).then_some(rule)
}

/// May it be looked at whenever something of the job is placed? What is too much is reported.
fn affordable(rule: &Constraint, header: Span, at: [Span; 2], cx: &mut Context<'_>) -> bool {
    cx.rules.count += 1;
    if cx.rules.count > JOB_RULES_MAX {
        // The others are no other problem.
        if cx.rules.count == JOB_RULES_MAX + 1 {
            let message = format!("a job has at most {JOB_RULES_MAX} constraints and affinities");
            cx.error(header, message);
        }
        return false;
    }
    for (side, at) in [&rule.left, &rule.right].into_iter().zip(at) {
        if side.len() > CONSTRAINT_SIDE_BYTES_MAX {
            let bytes = side.len();
            let message = format!(
                "this has {bytes} bytes; a side of a comparison has at most {CONSTRAINT_SIDE_BYTES_MAX}"
            );
            cx.error(at, message);
            return false;
        }
    }
    let [_, at] = at;
    // What is known on the node alone is looked at there.
    rule.operator != Operator::Regexp || rule.right.contains("${") || pattern(&rule.right, at, cx)
}

/// Is it a regular expression, and does the job have room for it?
fn pattern(text: &str, at: Span, cx: &mut Context<'_>) -> bool {
    let rules = &mut cx.rules;
    if rules.price > JOB_PATTERNS_BYTES_MAX {
        return false;
    }
    let (compiled, price) = rules.patterns.compile(text, PATTERNS_OF_ONE_BYTES_MAX);
    rules.price = rules.price.saturating_add(price);
    if let Err(error) = compiled {
        cx.error(at, format!("{} is {error}", shown(text)));
        return false;
    }
    if rules.price > JOB_PATTERNS_BYTES_MAX {
        let message = format!(
            "the regular expressions of this job have, compiled, more than {JOB_PATTERNS_BYTES_MAX} bytes up to \
             here; use fewer, or smaller classes: [0-9] is far smaller than \\d"
        );
        cx.error(at, message);
        return false;
    }
    true
}

fn operator(given: Given<String>, cx: &mut Context<'_>) -> Option<Operator> {
    let Some((text, at)) = given.placed() else { return Some(Operator::Equal) };
    if let Some((_, operator)) = OPERATORS.iter().find(|(name, _)| *name == text) {
        return Some(*operator);
    }
    let instead = cx.sink.nearest(&text, OPERATORS.iter().map(|(name, _)| *name));
    cx.sink.suggest(at, format!("{} is no operator", shown(&text)), instead);
    None
}
