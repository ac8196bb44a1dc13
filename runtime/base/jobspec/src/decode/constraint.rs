//! Constraints and affinities, with the short forms `version = "…"`, `regexp = "…"` and so on.

use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, Setting, keys};
use ostler_model::job::{Affinity, Constraint, Operator, parse_bool};
use ostler_model::limits::{CONSTRAINT_SIDE_BYTES_MAX, JOB_PATTERNS_BYTES_MAX, JOB_RULES_MAX};
use ostler_text::patterns::{PATTERNS_OF_ONE_BYTES_MAX, Patterns};

/// The cost of the constraints and affinities of a job that were read so far.
#[derive(Debug, Default)]
pub(crate) struct RulesCost {
    count: usize,
    patterns: Patterns,
    /// The cost of compiling the patterns, as bytes of a budget.
    price: usize,
}

/// The words of all operators. Of an operator with several words, the first one is written.
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

/// The weight of an affinity that gives none.
pub(super) const PREFERRED: i8 = 50;

/// Describes the keys of a constraint, or of an affinity, which also has a weight.
macro_rules! rule_keys {
    ($name:ident: $what:literal ($operators:literal, $unary:literal) { $($weight:tt)* } { $($short:tt)* }) => {
        keys! {
            struct $name: $what {
                /// What is looked at: `${attr.…}`, `${meta.…}`, `${node.…}`, `${device.…}`.
                left "attribute" / LTarget: Setting<String>, "needed";
                /// How it is compared: `=`, `!=`, `<`, `<=`, `>`, `>=`, `version`, `semver`, `regexp`,
                /// `set_contains`, `set_contains_any`
                #[doc = $operators]
                operator / Operand: Setting<String>, "`=`";
                /// What it is compared with
                #[doc = $unary]
                right "value" / RTarget: Setting<String>, "needed";
                $($weight)*
                /// Short for the operator and the value.
                version: Setting<String>, "none";
                /// Short for the operator and the value.
                semver: Setting<String>, "none";
                /// Short for the operator and the value.
                regexp: Setting<String>, "none";
                /// Short for the operator and the value.
                set_contains: Setting<String>, "none";
                /// Short for the operator `set_contains` and the value.
                set_contains_all: Setting<String>, "none";
                /// Short for the operator and the value.
                set_contains_any: Setting<String>, "none";
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
        distinct_hosts: Setting<bool>, "none";
        /// In a job or a group: short for the attribute and the operator. Nodes of one value of this
        /// attribute have at most one allocation of it, or `value` many.
        distinct_property: Setting<String>, "none";
    }
}
rule_keys! {
    AffinityKeys: "an affinity" (
        "; in a device also `is_set`, `is_not_set`.", "; not needed by `is_set` and `is_not_set`."
    ) {
        /// How much is preferred what fits; below 0, what does not. Not 0.
        weight / Weight: Setting<i8> [Whole(-100, 100)] = PREFERRED;
    } {}
}

/// The word of an operator.
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
        match (
            self.distinct_hosts.clone().with_place(),
            self.distinct_property.clone().with_place(),
        ) {
            (None, None) => {}
            (Some((truth, at)), None) => {
                self.check_alone(at, "distinct_hosts", true, cx);
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
                self.check_alone(at, "distinct_property", false, cx);
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
            Operator::DistinctHosts => rule.right.is_empty() || parse_bool(&rule.right).is_some(),
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
                quote_text(&rule.right)
            );
            return cx.refuse(at, message);
        }
        Some(rule)
    }

    /// Report keys that stand beside a short form. With `all`, the short form also has the value.
    fn check_alone(&self, at: Span, key: &str, all: bool, cx: &mut Context<'_>) {
        let given = |given: &Setting<String>| given.value.is_some();
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

/// Decode `affinity` blocks of a job, a group or a task. Operators that cannot prefer one node to
/// another are refused.
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
            cx.error(keys.operator.at, format!("{operator} is not an operator of affinities"));
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
    [left, right]: [Setting<String>; 2],
    operator: Setting<String>,
    short: [(Operator, Setting<String>); 6],
    cx: &mut Context<'_>,
) -> Option<Constraint> {
    let mut compared: Option<(Operator, String, Span)> = None;
    for (of, given) in short {
        let key = given.key;
        let Some((text, at)) = given.with_place() else { continue };
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
            cx.error(at, format!("distinct_hosts does not use {}; leave it out", left.key));
        }
        return Some(Constraint { left: String::new(), operator, right: value });
    }
    if left.value.is_none() && !left.was_given {
        cx.error(header, format!("{what} needs an {} to look at", left.key));
    }
    let left_at = left.at;
    let rule = Constraint { left: left.value?, operator, right: value };
    is_affordable(&rule, header, [left_at, at], cx).then_some(rule)
}

/// Whether a rule costs little enough to be evaluated at every placement of the job. If it does not,
/// this is reported.
fn is_affordable(rule: &Constraint, header: Span, at: [Span; 2], cx: &mut Context<'_>) -> bool {
    cx.rules.count += 1;
    if cx.rules.count > JOB_RULES_MAX {
        // The number is reported once, not for each further rule.
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
    // A pattern with references is known on the node alone, and is compiled there.
    rule.operator != Operator::Regexp || rule.right.contains("${") || pattern(&rule.right, at, cx)
}

/// Whether a text is a regular expression that fits into the budget of the job.
fn pattern(text: &str, at: Span, cx: &mut Context<'_>) -> bool {
    let rules = &mut cx.rules;
    if rules.price > JOB_PATTERNS_BYTES_MAX {
        return false;
    }
    let (compiled, price) = rules.patterns.compile(text, PATTERNS_OF_ONE_BYTES_MAX);
    rules.price = rules.price.saturating_add(price);
    if let Err(error) = compiled {
        cx.error(at, format!("{} is {error}", quote_text(text)));
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

fn operator(given: Setting<String>, cx: &mut Context<'_>) -> Option<Operator> {
    let Some((text, at)) = given.with_place() else { return Some(Operator::Equal) };
    if let Some((_, operator)) = OPERATORS.iter().find(|(name, _)| *name == text) {
        return Some(*operator);
    }
    let instead = cx.sink.nearest(&text, OPERATORS.iter().map(|(name, _)| *name));
    cx.sink.suggest(at, format!("{} is not an operator", quote_text(&text)), instead);
    None
}
