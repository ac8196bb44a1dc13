//! Does a constraint hold?
//!
//! ```text
//! left ─ resolve ${…} ─┐
//!                      ├─► operator ─► holds, or UnmetConstraint: both values and why
//! right ─ resolve ${…} ┘
//! ```
//! A side is `${name}` (the typed value of that name), text around `${name}`s (text), or plain
//! text. Plain text is read as a number, a truth value or a text, whichever the other side is.
//! Sides that cannot be compared meet no constraint, not even `!=`. When exactly one side is unset,
//! `!=` holds. The module is pure: the resolver says what names mean.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::version::{self, VersionError, VersionStyle};
use ostler_model::attribute::{Attribute, AttributeValue, Comparison};
use ostler_model::job::{Constraint, Operator};
use ostler_model::limits::{CONSTRAINT_PATTERNS_BYTES_MAX, CONSTRAINT_SIDE_BYTES_MAX};
use ostler_text::patterns::{Pattern, PatternResult, Patterns};

/// What a name between `${` and `}` stands for; `None` when nothing is set.
pub type Resolver<'a> = &'a dyn Fn(&str) -> Option<Attribute>;

/// A constraint that does not hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnmetConstraint {
    /// The constraint as the job states it.
    pub constraint: Constraint,
    /// Value of its left side; `None` when unset.
    pub left: Option<Attribute>,
    /// Value of its right side; `None` when unset.
    pub right: Option<Attribute>,
    /// The reason why it does not hold.
    pub why: UnmetReason,
}

/// Why a constraint does not hold.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
pub enum UnmetReason {
    /// Both sides have values and the relation is not true of them.
    #[error("it is not true")]
    False,
    /// It would hold if the version were not a pre-release.
    #[error(
        "what follows its \"-\" makes it a pre-release, and operator version takes none for later or earlier; \
         operator semver does, of versions with three parts (\">= 5.10.0\")"
    )]
    PreRelease,
    /// A side has no value on this node.
    #[error("it has no value")]
    Unset,
    /// The values are of different kinds, or have units that measure different things.
    #[error("the two cannot be compared; check kinds and units")]
    NotComparable,
    /// A side is longer than anybody would write it.
    #[error("a side is longer than {CONSTRAINT_SIDE_BYTES_MAX} bytes")]
    TooLong,
    /// A version or a requirement cannot be read.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The regular expression is broken or too large.
    #[error("the right side is {reason}")]
    Regexp {
        /// What is wrong with the expression, as the compiler of patterns says it.
        reason: String,
    },
}

impl std::error::Error for UnmetConstraint {}

impl fmt::Display for UnmetConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Constraint { left, operator: _, right } = &self.constraint;
        write!(f, "{} is false", constraint_text(&self.constraint))?;
        let mut joint = ": ";
        for (text, value) in [(left, &self.left), (right, &self.right)] {
            if text.contains("${") {
                match value {
                    Some(value) => write!(f, "{joint}{text} is {value}")?,
                    None => write!(f, "{joint}{text} is not set")?,
                }
                joint = ", ";
            }
        }
        match &self.why {
            UnmetReason::False | UnmetReason::Unset => Ok(()),
            why @ UnmetReason::PreRelease => write!(f, "; {why}"),
            why => write!(f, "{joint}{why}"),
        }
    }
}

/// How an operator is written in a job file.
#[must_use]
pub const fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Equal => "=",
        Operator::NotEqual => "!=",
        Operator::Less => "<",
        Operator::LessOrEqual => "<=",
        Operator::Greater => ">",
        Operator::GreaterOrEqual => ">=",
        Operator::Version => "version",
        Operator::Semver => "semver",
        Operator::Regexp => "regexp",
        Operator::SetContainsAll => "set_contains",
        Operator::SetContainsAny => "set_contains_any",
        Operator::IsSet => "is_set",
        Operator::IsNotSet => "is_not_set",
        Operator::DistinctHosts => "distinct_hosts",
        Operator::DistinctProperty => "distinct_property",
    }
}

/// A rule on one line: `${device.attr.memory} >= 40 GiB`.
#[must_use]
pub fn constraint_text(rule: &Constraint) -> String {
    let Constraint { left, operator, right } = rule;
    match operator {
        Operator::IsSet | Operator::IsNotSet => format!("{left} {}", sign(*operator)),
        Operator::DistinctHosts => sign(*operator).to_owned(),
        Operator::DistinctProperty => format!("{} {left}", sign(*operator)),
        _ => format!("{left} {} {right}", sign(*operator)),
    }
}

/// Check one constraint.
///
/// # Errors
/// [`UnmetConstraint`] when it does not hold, with both values and the reason.
pub fn evaluate(
    constraint: &Constraint,
    resolve: Resolver<'_>,
) -> Result<(), Box<UnmetConstraint>> {
    let left = side(&constraint.left, resolve);
    let right = side(&constraint.right, resolve);
    let longest = constraint.left.len().max(constraint.right.len());
    let result = if longest > CONSTRAINT_SIDE_BYTES_MAX {
        Err(UnmetReason::TooLong)
    } else {
        relation_holds(constraint.operator, left.as_ref(), right.as_ref())
    };
    match result {
        Ok(true) => Ok(()),
        Ok(false) => Err(UnmetReason::False),
        Err(why) => Err(why),
    }
    .map_err(|why| {
        Box::new(UnmetConstraint {
            constraint: constraint.clone(),
            left: left.map(|side| side.value),
            right: right.map(|side| side.value),
            why,
        })
    })
}

struct Side {
    value: Attribute,
    /// It is written out in the job file, so its kind follows that of the other side.
    plain: bool,
}

fn side(text: &str, resolve: Resolver<'_>) -> Option<Side> {
    if !text.contains("${") {
        return Some(Side { value: Attribute::from(text), plain: true });
    }
    if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
        && !name.contains("${")
    {
        return resolve(name.trim()).map(|value| Side { value, plain: false });
    }
    replace(text, resolve).map(|text| Side { value: Attribute::from(text), plain: false })
}

/// Text with every `${name}` replaced; `None` when one of them is unset.
fn replace(text: &str, resolve: Resolver<'_>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, tail) = after.split_once('}')?;
        out.push_str(before);
        out.push_str(&resolve(name.trim())?.to_string());
        rest = tail;
    }
    out.push_str(rest);
    Some(out)
}

fn relation_holds(
    operator: Operator,
    left: Option<&Side>,
    right: Option<&Side>,
) -> Result<bool, UnmetReason> {
    match operator {
        Operator::IsSet => return left.is_some().then_some(true).ok_or(UnmetReason::Unset),
        Operator::IsNotSet => return Ok(left.is_none()),
        // The number of allocations is checked where they are placed.
        Operator::DistinctHosts => return Ok(true),
        Operator::DistinctProperty => {
            return left.is_some().then_some(true).ok_or(UnmetReason::Unset);
        }
        Operator::NotEqual if left.is_some() != right.is_some() => return Ok(true),
        _ => {}
    }
    let (Some(left), Some(right)) = (left, right) else {
        return Err(UnmetReason::Unset);
    };
    let (left_text, right_text) = (left.value.to_string(), right.value.to_string());
    match operator {
        Operator::Version => {
            let holds = version::satisfies(&left_text, &right_text, VersionStyle::Lenient)?;
            if !holds && version::fails_as_pre_release(&left_text, &right_text) {
                Err(UnmetReason::PreRelease)
            } else {
                Ok(holds)
            }
        }
        Operator::Semver => Ok(version::satisfies(&left_text, &right_text, VersionStyle::Strict)?),
        Operator::Regexp => regexp(&left_text, &right_text),
        Operator::SetContainsAll | Operator::SetContainsAny => {
            let has: BTreeSet<&str> = members(&left_text).collect();
            let mut wanted = members(&right_text);
            Ok(match operator {
                Operator::SetContainsAll => wanted.all(|one| has.contains(one)),
                _ => wanted.any(|one| has.contains(one)),
            })
        }
        Operator::Equal | Operator::NotEqual => {
            let equal = compare(left, right, false).equal().ok_or(UnmetReason::NotComparable)?;
            Ok(equal == (operator == Operator::Equal))
        }
        Operator::Less
        | Operator::LessOrEqual
        | Operator::Greater
        | Operator::GreaterOrEqual
        | Operator::IsSet
        | Operator::IsNotSet
        | Operator::DistinctHosts
        | Operator::DistinctProperty => {
            let order = compare(left, right, true).order().ok_or(UnmetReason::NotComparable)?;
            Ok(order_holds(operator, order))
        }
    }
}

fn order_holds(operator: Operator, order: Ordering) -> bool {
    match operator {
        Operator::Less => order.is_lt(),
        Operator::LessOrEqual => order.is_le(),
        Operator::Greater => order.is_gt(),
        Operator::GreaterOrEqual => order.is_ge(),
        _ => false,
    }
}

/// Compares two sides. Two texts are equal when they are the same text (`1.10` is not `1.1`), but
/// they are ordered as numbers when both are numbers (`10` is after `9`). A plain side takes the
/// kind of the other side.
fn compare(left: &Side, right: &Side, ordered: bool) -> Comparison {
    let text = |side: &Side| matches!(side.value.value, AttributeValue::Text(_));
    if !(text(left) || text(right)) {
        return left.value.compare(&right.value);
    }
    if text(left) && text(right) {
        let exact = left.value.compare(&right.value);
        if !ordered {
            return exact;
        }
        return match parse_side(left).compare(&parse_side(right)) {
            Comparison::NotComparable if either_unit(left, right) => Comparison::NotComparable,
            Comparison::NotComparable => exact,
            as_numbers => as_numbers,
        };
    }
    parse_side(left).compare(&parse_side(right))
}

/// Reads a text side as a value. A side that has a kind already stays as it is.
fn parse_side(side: &Side) -> Attribute {
    match &side.value.value {
        AttributeValue::Text(text) => Attribute::parse(text),
        _ => side.value.clone(),
    }
}

fn either_unit(left: &Side, right: &Side) -> bool {
    (left.plain || right.plain)
        && (parse_side(left).unit.is_some() || parse_side(right).unit.is_some())
}

/// The compiled expressions of the constraints that were evaluated last. They are needed again
/// whenever something of their jobs is placed.
static PATTERNS: Mutex<Patterns> = Mutex::new(Patterns::new());

fn regexp(text: &str, pattern: &str) -> Result<bool, UnmetReason> {
    let compiled = compile_pattern(pattern);
    let compiled = compiled.map_err(|error| UnmetReason::Regexp { reason: error.to_string() })?;
    Ok(compiled.is_match(text))
}

/// Compiles a pattern without holding the lock, so that other threads can read theirs meanwhile.
fn compile_pattern(pattern: &str) -> PatternResult {
    let patterns = || PATTERNS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = patterns().get_compiled(pattern);
    known.unwrap_or_else(|| {
        let compiled = Pattern::compile(pattern).map(Arc::new);
        patterns().keep(pattern, &compiled, CONSTRAINT_PATTERNS_BYTES_MAX);
        compiled
    })
}

/// Members of a comma-separated list, without the spaces around them.
pub fn members(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|member| !member.is_empty())
}

#[cfg(test)]
#[path = "constraint_tests.rs"]
mod tests;
