//! What the servers allow the bearer of a token to do on a node.
//!
//! ```text
//! token ─► ACL.ResolveToken ─┬─ management: everything
//! none ─► anonymous ─────────┴─ names ─► ACL.GetPolicies ─► rules ─► the nearest to the namespace
//!          no access control: everything
//! ```

use ostler_jobspec::access::{NamespaceRule, namespace_rules};
use ostler_model::grants::wildcard;
use ostler_model::limits::CLUSTER_TEXT_BYTES_MAX;
use ostler_model::printable::printable_line;

use super::caller::ServerCallError;
use super::msgpack::Value;
use super::rpc::{field, text};
use super::servers::ServerCalls;

/// The one policy of a caller without a token.
const ANONYMOUS: &str = "anonymous";
/// The capability to run commands inside tasks that see the node's own files.
const ALLOC_NODE_EXEC: &str = "alloc-node-exec";

/// Why access is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The servers did not answer.
    #[error(transparent)]
    Unanswered(#[from] ServerCallError),
    /// The servers do not know the token.
    #[error("the servers do not know the token")]
    Unknown,
    /// A policy cannot be read.
    #[error("policy {name} cannot be read: {why}")]
    Policy {
        /// The name of the policy.
        name: String,
        /// What is wrong with the policy.
        why: String,
    },
    /// The policies of the token do not allow it.
    #[error("no policy of the token has {ALLOC_NODE_EXEC} in namespace {namespace}")]
    Refused {
        /// The namespace of the task.
        namespace: String,
    },
}

/// Check that the bearer of this token may run commands inside tasks that see the node's own files.
/// An empty token stands for none.
///
/// # Errors
/// Why the bearer may not.
pub(crate) async fn may_exec_on_node(
    calls: &ServerCalls,
    token: &str,
    namespace: &str,
) -> Result<(), AccessError> {
    let names = match token {
        "" => vec![ANONYMOUS.to_owned()],
        token => match parse_token(calls.token(token).await) {
            Ok(TokenPolicies::All) => return Ok(()),
            Ok(TokenPolicies::By(names)) => names,
            Err(error) => return Err(error),
        },
    };
    match calls.clone().with_token(token).policies(&names).await {
        Err(error) if is_open(&error) => Ok(()),
        answer => decide(&answer?, &names, namespace),
    }
}

/// What decides about a token.
#[derive(Debug, PartialEq, Eq)]
enum TokenPolicies {
    All,
    /// The policies of these names.
    By(Vec<String>),
}

fn parse_token(answer: Result<Value, ServerCallError>) -> Result<TokenPolicies, AccessError> {
    let answer = match answer {
        Err(error) if is_open(&error) => return Ok(TokenPolicies::All),
        answer => answer?,
    };
    let token = field(&answer, "Token").filter(|token| !token.is_nil());
    let token = token.ok_or(AccessError::Unknown)?;
    if field(token, "Type").and_then(text) == Some("management") {
        return Ok(TokenPolicies::All);
    }
    let names = field(token, "Policies").and_then(Value::as_array);
    let names = names.into_iter().flatten().filter_map(text).map(str::to_owned);
    Ok(TokenPolicies::By(names.collect()))
}

/// Whether the error says that the servers do not use access control.
fn is_open(error: &ServerCallError) -> bool {
    matches!(error, ServerCallError::Refused { message, .. } if message.contains("ACL support disabled"))
}

fn decide(answer: &Value, names: &[String], namespace: &str) -> Result<(), AccessError> {
    let policies = field(answer, "Policies").and_then(Value::as_map);
    let mut rules = Vec::new();
    for (name, policy) in policies.into_iter().flatten() {
        // A policy that was not asked for belongs to nobody.
        let Some(name) = text(name).filter(|name| names.iter().any(|asked| asked == name)) else {
            continue;
        };
        let given = field(policy, "Rules").and_then(text).unwrap_or_default();
        rules.extend(namespace_rules(given).map_err(|why| AccessError::Policy {
            name: printable_line(name, CLUSTER_TEXT_BYTES_MAX),
            why: printable_line(why.render(given, false), CLUSTER_TEXT_BYTES_MAX),
        })?);
    }
    if allows(&rules, namespace, ALLOC_NODE_EXEC) {
        Ok(())
    } else {
        Err(AccessError::Refused { namespace: namespace.to_owned() })
    }
}

/// Parse any value as the answers about a token, for fuzz tests.
pub(crate) fn read(answer: Value) {
    let _allowed = decide(&answer, &[ANONYMOUS.to_owned()], "default");
    let _token = parse_token(Ok(answer));
}

/// Whether the rules nearest to the namespace have the capability. Rules of the same name count
/// together, and a rule that denies everything wins. If several names are equally near, each of
/// them must allow it.
fn allows(rules: &[NamespaceRule], namespace: &str, capability: &str) -> bool {
    let distance = |rule: &NamespaceRule| distance(&rule.namespace, namespace);
    let Some(nearest) = rules.iter().filter_map(distance).min() else { return false };
    let near = || rules.iter().filter(|rule| distance(rule) == Some(nearest));
    near().all(|rule| {
        let mut of_name = near().filter(|other| other.namespace == rule.namespace);
        of_name.any(|other| other.capabilities.contains(capability))
    }) && !near().any(|rule| rule.denied)
}

/// The distance of a name from a namespace that it matches. It is zero for the name itself.
fn distance(name: &str, namespace: &str) -> Option<usize> {
    if !name.contains('*') {
        return (name == namespace).then_some(0);
    }
    let letters = name.chars().filter(|&letter| letter != '*').count();
    let rest = namespace.chars().count().checked_sub(letters)?;
    wildcard(name, namespace).then_some(rest.saturating_add(1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::rpc::map;

    fn refused(message: &str) -> ServerCallError {
        ServerCallError::Refused { method: "ACL".to_owned(), message: message.to_owned() }
    }

    fn policies(rules: &[(&str, &str)]) -> Value {
        let all = rules.iter().map(|&(name, rules)| (name, map([("Rules", rules.into())])));
        map([("Policies", map(all))])
    }

    fn may(rules: &[(&str, &str)], namespace: &str) -> bool {
        let names: Vec<_> = rules.iter().map(|(name, _)| (*name).to_owned()).collect();
        decide(&policies(rules), &names, namespace).is_ok()
    }

    const EXEC: &str = "capabilities = [\"alloc-node-exec\"]";

    #[test]
    fn a_token_goes_by_its_policies_and_a_management_token_by_none() {
        let token = |kind: &str| {
            let names = Value::Array(vec!["a".into(), "b".into()]);
            Ok(map([("Token", map([("Type", kind.into()), ("Policies", names)]))]))
        };
        assert_eq!(parse_token(token("management")), Ok(TokenPolicies::All));
        let names = TokenPolicies::By(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(parse_token(token("client")), Ok(names));
        assert_eq!(parse_token(Ok(map([("Token", Value::Nil)]))), Err(AccessError::Unknown));
        assert_eq!(parse_token(Err(refused("ACL support disabled"))), Ok(TokenPolicies::All));
        let lost = refused("No cluster leader");
        assert_eq!(parse_token(Err(lost.clone())), Err(AccessError::Unanswered(lost)));
    }

    #[test]
    fn only_the_capability_itself_allows_and_in_its_namespace_alone() {
        let exec = format!("namespace \"default\" {{ {EXEC} }}");
        assert!(may(&[("ops", &exec)], "default"));
        assert!(!may(&[("ops", &exec)], "other"));
        assert!(!may(&[("ops", "namespace \"default\" { policy = \"write\" }")], "default"));
        let inside = "namespace \"default\" { capabilities = [\"alloc-exec\"] }";
        assert!(!may(&[("ops", inside)], "default"));
        assert!(may(&[("ops", inside), ("more", &exec)], "default"));
        let deny = "namespace \"default\" { policy = \"deny\" }";
        assert!(!may(&[("ops", &exec), ("deny", deny)], "default"));
        assert!(!may(&[], "default"));
    }

    #[test]
    fn the_nearest_rule_counts() {
        let rules = format!(
            "namespace \"*\" {{\n {EXEC}\n}}\nnamespace \"prod-*\" {{\n policy = \"write\"\n}}\n\
             namespace \"prod-db-*\" {{\n {EXEC}\n}}\nnamespace \"prod-db-1\" {{\n policy = \"read\"\n}}"
        );
        for (namespace, allowed) in
            [("dev", true), ("prod-web", false), ("prod-db-2", true), ("prod-db-1", false)]
        {
            assert_eq!(may(&[("ops", &rules)], namespace), allowed, "{namespace}");
        }
        // These two names are equally near.
        let tied = format!(
            "namespace \"a*\" {{\n {EXEC}\n}}\nnamespace \"*b\" {{\n policy = \"write\"\n}}"
        );
        assert!(!may(&[("ops", &tied)], "a-b"));
        assert!(may(&[("ops", &tied)], "a-c"));
    }

    #[test]
    fn a_policy_that_cannot_be_read_or_was_not_asked_for_allows_nothing() {
        let exec = format!("namespace \"*\" {{ {EXEC} }}");
        assert!(!may(&[("ops", &exec), ("bad", "namespace {")], "default"));
        let other = policies(&[("other", &exec)]);
        assert!(decide(&other, &["ops".to_owned()], "default").is_err());
        assert!(decide(&Value::Nil, &["ops".to_owned()], "default").is_err());
    }

    #[test]
    fn stars_fit_any_text() {
        for (name, namespace, expected) in [
            ("*", "", true),
            ("a*", "a", true),
            ("a*a", "a", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("*b*", "abc", true),
            ("a**b", "ab", true),
            ("*ab*ab", "ab", false),
        ] {
            assert_eq!(distance(name, namespace).is_some(), expected, "{name} {namespace}");
        }
    }
}
