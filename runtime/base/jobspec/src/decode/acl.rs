//! The `acl` block of the agent's configuration: who may do what over the API.
//!
//! ```hcl
//! acl {
//!   enabled = true
//!   token "ci" {
//!     sha256   = "9f86d081…"
//!     policies = ["submit@web", "read"]
//!   }
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::keys::{Context, Setting, Texts, keys};
use ostler_model::access::{AccessPolicy, AclConfig, ConfiguredToken, SecretSource};
use ostler_model::limits::{NAME_BYTES_MAX, TOKEN_POLICIES_MAX, TOKENS_MAX};

keys! {
    struct AclKeys: "acl" {
        /// Requests over TCP need a token. The agent's socket needs none: only its user can open it.
        enabled: Setting<bool> = false;
        /// A token, by a name for people.
        tokens "token": Vec<TokenKeys>;
    }
    not_yet {
        "token_ttl"; "policy_ttl"; "role_ttl"; "replication_token";
        "token_min_expiration_ttl"; "token_max_expiration_ttl";
    }
}

keys! {
    struct TokenKeys: "a token block", label Name {
        /// The SHA-256 of its secret in hexadecimal, as `printf %s SECRET | sha256sum` prints it.
        sha256: Setting<String>, "`secret_file`";
        /// A file with the secret alone, which nobody but the agent's user may read.
        secret_file: Setting<PathBuf>, "`sha256`";
        /// What its bearer may do: `read`, `submit`, `operate` or `admin`, in one namespace as `submit@web`.
        policies: Texts, "needed";
    }
}

/// Decode an `acl` block. Whether the files that it names exist is checked when the agent starts.
pub(super) fn acl(keys: AclKeys, cx: &mut Context<'_>) -> AclConfig {
    let enabled = keys.enabled.value.unwrap_or(false);
    let (mut names, mut tokens) = (BTreeSet::new(), BTreeMap::new());
    for block in keys.tokens {
        cx.add_unique(&mut names, "a token", &block.label);
        let (name, at) = (block.label.name.clone(), block.label.span);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            cx.error(at, format!("the name of a token has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if tokens.len() >= TOKENS_MAX {
            cx.error(at, format!("there are more than {TOKENS_MAX} tokens"));
            break;
        }
        if !enabled {
            cx.error(at, "a token has no effect without acl { enabled = true }");
        }
        if let Some(token) = token(block, cx) {
            tokens.entry(name).or_insert(token);
        }
    }
    AclConfig { enabled, tokens }
}

fn token(keys: TokenKeys, cx: &mut Context<'_>) -> Option<ConfiguredToken> {
    let (at, policies_at) = (keys.label.span, keys.policies.at);
    let mut policies = Vec::new();
    let given = keys.policies.value.as_ref().is_some_and(|given| !given.is_empty());
    for (text, at) in keys.policies.value.into_iter().flatten() {
        match text.parse::<AccessPolicy>() {
            Ok(policy) => policies.push(policy),
            Err(error) => cx.error(at, error.to_string()),
        }
    }
    if policies.len() > TOKEN_POLICIES_MAX {
        cx.error(policies_at, format!("a token has at most {TOKEN_POLICIES_MAX} policies"));
    }
    // Policies that cannot be read were reported already.
    if !given {
        cx.error(at, "a token needs policies: what its bearer may do, such as [\"read\"]");
    }
    let secret = match (keys.sha256.value, keys.secret_file.value) {
        (Some(text), None) => match text.parse() {
            Ok(digest) => SecretSource::Digest(digest),
            Err(error) => return cx.refuse(keys.sha256.at, format!("sha256: {error}")),
        },
        (None, Some(file)) => SecretSource::File(file),
        _ => return cx.refuse(at, "a token needs one of sha256 and secret_file"),
    };
    Some(ConfiguredToken { secret, policies })
}
