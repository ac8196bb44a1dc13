//! The table of tokens, and the result of each change of it. Pure.

use std::collections::BTreeMap;

use ostler_model::access::{AccessPolicy, TokenId, TokenRecord, TokenRecords};
use ostler_model::limits::{TOKEN_POLICIES_MAX, TOKEN_TEXT_BYTES_MAX, TOKENS_MAX};
use ostler_model::time::Timestamp;
use subtle::ConstantTimeEq as _;

/// Why a token was not created, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The agent does not use tokens.
    #[error("ACL support disabled")]
    Disabled,
    /// There is no token with this public id.
    #[error("ACL token not found")]
    Unknown,
    /// The token stands in the configuration.
    #[error(
        "token {0:?} comes from the agent's configuration; change its block there and send the agent SIGHUP"
    )]
    Configured(String),
    /// There are as many tokens as there may be.
    #[error(
        "there are already {TOKENS_MAX} tokens, the most allowed; remove some that are no longer needed"
    )]
    TooMany,
    /// The token would allow nothing, or has too many policies.
    #[error(
        "a token needs policies: read, submit, operate or admin, of which the first three can be limited to \
         one namespace, as in submit@web; at most {TOKEN_POLICIES_MAX} are allowed"
    )]
    Policies,
    /// The name is too long, or has control characters.
    #[error(
        "the name of a token may have at most {TOKEN_TEXT_BYTES_MAX} bytes and no control characters"
    )]
    Name,
    /// The first token was already created.
    #[error("ACL bootstrap already done (reset index: {0})")]
    Bootstrapped(u64),
    /// Too many other changes are waiting.
    #[error("too many tokens are being changed at once; try again")]
    Busy,
    /// The change could not be written to disk.
    #[error("the change could not be written to the agent's state")]
    State(#[from] ostler_state::StateError),
    /// The disk has not confirmed the change in time.
    #[error(
        "the change of the token was not written to disk in time and may still be; check `ostler token list` \
         before you try again"
    )]
    Unanswered,
}

/// A request for a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The name for people; may be empty.
    pub name: String,
    /// What its bearer may do.
    pub policies: Vec<AccessPolicy>,
    /// The time at which it expires; none for never.
    pub expires: Option<Timestamp>,
}

/// The new name and policies of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChange {
    /// The new name for people; may be empty.
    pub name: String,
    /// What its bearer may do from now on.
    pub policies: Vec<AccessPolicy>,
}

/// A token as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownToken {
    /// The record of the token.
    pub token: TokenRecord,
    /// Whether it stands in the configuration.
    pub configured: bool,
}

/// All tokens of the agent, from the configuration and on record.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    /// The tokens of the configuration, by name.
    configured: BTreeMap<String, TokenRecord>,
    kept: TokenRecords,
}

impl TokenTable {
    pub(super) const fn new(kept: TokenRecords) -> Self {
        Self { configured: BTreeMap::new(), kept }
    }

    /// Replace the tokens of the configuration. Returns the ids of those that are gone or changed.
    pub(super) fn configure(&mut self, mut tokens: BTreeMap<String, TokenRecord>) -> Vec<TokenId> {
        let is_as = |one: &TokenRecord, other: &TokenRecord| {
            one.secret == other.secret && one.policies == other.policies
        };
        for (name, token) in &mut tokens {
            if let Some(before) = self.configured.get(name).filter(|before| is_as(before, token)) {
                token.created = before.created;
            }
        }
        let before = std::mem::replace(&mut self.configured, tokens);
        let same = |(name, token): &(&String, &TokenRecord)| {
            self.configured.get(*name).is_some_and(|now| is_as(now, token))
        };
        before.iter().filter(|one| !same(one)).map(|(_, token)| token.accessor).collect()
    }

    /// The tokens of the configuration, by name.
    pub(super) const fn configured_tokens(&self) -> &BTreeMap<String, TokenRecord> {
        &self.configured
    }

    pub(super) const fn stored_tokens(&self) -> &TokenRecords {
        &self.kept
    }

    /// Use these records, which are on disk now.
    pub(super) fn apply(&mut self, kept: TokenRecords) {
        self.kept = kept;
    }

    fn all_tokens(&self) -> impl Iterator<Item = (&TokenRecord, bool)> {
        let configured = self.configured.values().map(|token| (token, true));
        configured.chain(self.kept.tokens.iter().map(|token| (token, false)))
    }

    /// The token with this secret, unless it has expired. All tokens are compared in any case, so
    /// that the time says nothing about the secret.
    pub(super) fn bearer(&self, secret: &[u8; 32], now: Timestamp) -> Option<&TokenRecord> {
        let mut found = None;
        for (token, _) in self.all_tokens() {
            if bool::from(token.secret.ct_eq(secret)) {
                found = Some(token);
            }
        }
        found.filter(|token| !is_expired(token, now))
    }

    /// The tokens that have not expired, as people see them.
    pub(super) fn list(&self, now: Timestamp) -> Vec<ShownToken> {
        let live = self.all_tokens().filter(|(token, _)| !is_expired(token, now));
        live.map(|(token, configured)| ShownToken { token: token.clone(), configured }).collect()
    }

    /// The next records with a new token. Expired tokens are left out.
    pub(super) fn with_token(
        &self,
        new: NewToken,
        accessor: TokenId,
        secret: [u8; 32],
        now: Timestamp,
    ) -> Result<(TokenRecords, TokenRecord), TokenError> {
        check(&new.name, &new.policies)?;
        let mut next = self.next_records(now);
        if next.tokens.len() + self.configured.len() >= TOKENS_MAX {
            return Err(TokenError::TooMany);
        }
        let token = TokenRecord {
            accessor,
            name: new.name,
            policies: new.policies,
            secret,
            created: now,
            expires: new.expires,
            create_index: next.index,
            modify_index: next.index,
        };
        next.tokens.push(token.clone());
        Ok((next, token))
    }

    /// The next records with the very first token.
    pub(super) fn with_first_token(
        &self,
        accessor: TokenId,
        secret: [u8; 32],
        policies: Vec<AccessPolicy>,
        now: Timestamp,
    ) -> Result<(TokenRecords, TokenRecord), TokenError> {
        if self.kept.bootstrapped {
            return Err(TokenError::Bootstrapped(self.kept.index));
        }
        let new = NewToken { name: "Bootstrap Token".to_owned(), policies, expires: None };
        let (mut next, token) = self.with_token(new, accessor, secret, now)?;
        next.bootstrapped = true;
        Ok((next, token))
    }

    /// The next records with a new name and new policies of a token.
    pub(super) fn with_change(
        &self,
        accessor: &str,
        change: TokenChange,
        now: Timestamp,
    ) -> Result<(TokenRecords, TokenRecord), TokenError> {
        check(&change.name, &change.policies)?;
        self.may_change(accessor)?;
        let mut next = self.next_records(now);
        let index = next.index;
        let token = next.tokens.iter_mut().find(|token| token.accessor.to_string() == accessor);
        let token = token.ok_or(TokenError::Unknown)?;
        token.name = change.name;
        token.policies = change.policies;
        token.modify_index = index;
        let token = token.clone();
        Ok((next, token))
    }

    /// The next records without a token.
    pub(super) fn without_token(
        &self,
        accessor: &str,
        now: Timestamp,
    ) -> Result<(TokenRecords, TokenRecord), TokenError> {
        self.may_change(accessor)?;
        let mut next = self.next_records(now);
        let at = next.tokens.iter().position(|token| token.accessor.to_string() == accessor);
        let token = next.tokens.remove(at.ok_or(TokenError::Unknown)?);
        Ok((next, token))
    }

    fn may_change(&self, accessor: &str) -> Result<(), TokenError> {
        let named = |token: &TokenRecord| token.accessor.to_string() == accessor;
        match self.configured.iter().find(|(_, token)| named(token)) {
            Some((name, _)) => Err(TokenError::Configured(name.clone())),
            None => Ok(()),
        }
    }

    fn next_records(&self, now: Timestamp) -> TokenRecords {
        let mut next = self.kept.clone();
        next.index = next.index.saturating_add(1);
        next.tokens.retain(|token| !is_expired(token, now));
        next
    }
}

/// Whether a token has expired. The expiry is a time of day, also if the clock was wrong when the
/// agent started.
fn is_expired(token: &TokenRecord, now: Timestamp) -> bool {
    token.expires.is_some_and(|end| end.remaining_at(now).is_zero())
}

fn check(name: &str, policies: &[AccessPolicy]) -> Result<(), TokenError> {
    if name.len() > TOKEN_TEXT_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(TokenError::Name);
    }
    if policies.is_empty() || policies.len() > TOKEN_POLICIES_MAX {
        return Err(TokenError::Policies);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn id(number: u128) -> TokenId {
        TokenId::new(uuid::Uuid::from_u128(number))
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn new(expires: Option<u64>) -> NewToken {
        let policies = vec!["read".parse().unwrap()];
        NewToken { name: "ci".to_owned(), policies, expires: expires.map(at) }
    }

    #[test]
    fn a_token_is_known_by_its_secret_until_it_ends() {
        let mut table = TokenTable::default();
        let (next, _) = table.with_token(new(Some(10)), id(1), [1; 32], at(5)).unwrap();
        table.apply(next);
        assert_eq!(table.bearer(&[1; 32], at(9)).unwrap().accessor, id(1));
        assert!(table.bearer(&[2; 32], at(9)).is_none());
        assert!(table.bearer(&[1; 32], at(10)).is_none() && table.list(at(10)).is_empty());
        let (next, _) = table.with_token(new(None), id(2), [2; 32], at(11)).unwrap();
        assert_eq!(next.tokens.len(), 1, "the one that ended is not kept");
    }

    #[test]
    fn a_token_on_record_ends_when_a_clock_that_was_late_is_set_right() {
        let hours = |hours: u64| hours * 3_600_000_000_000;
        let mut table = TokenTable::default();
        let (next, _) =
            table.with_token(new(Some(hours(9))), id(1), [1; 32], at(hours(1))).unwrap();
        table.apply(next);
        // The agent started at two o'clock by its clock, when it was ten o'clock.
        let right = Timestamp::from_readings(hours(10), hours(2));
        assert!(table.bearer(&[1; 32], right).is_none() && table.list(right).is_empty());
        let back = Timestamp::from_readings(hours(2), hours(10));
        assert!(table.bearer(&[1; 32], back).is_none(), "nor does it live on when it is set back");
    }

    #[test]
    fn tokens_of_the_configuration_are_changed_there_alone() {
        let mut table = TokenTable::default();
        let (_, token) = table.with_token(new(None), id(1), [1; 32], at(1)).unwrap();
        assert!(table.configure([("ci".to_owned(), token.clone())].into()).is_empty());
        assert!(table.list(at(1)).iter().all(|shown| shown.configured));
        let error = table.without_token(&id(1).to_string(), at(1)).unwrap_err();
        assert!(matches!(error, TokenError::Configured(name) if name == "ci"));
        let changed = TokenRecord { secret: [3; 32], ..token };
        assert_eq!(table.configure([("ci".to_owned(), changed)].into()), [id(1)]);
        assert_eq!(table.configure(BTreeMap::new()), [id(1)]);
    }

    #[test]
    fn the_first_token_is_made_once() {
        let mut table = TokenTable::default();
        let admin = || vec!["admin".parse().unwrap()];
        let (next, _) = table.with_first_token(id(1), [1; 32], admin(), at(1)).unwrap();
        table.apply(next);
        let error = table.with_first_token(id(2), [2; 32], admin(), at(1)).unwrap_err();
        assert_eq!(error.to_string(), "ACL bootstrap already done (reset index: 1)");
    }

    #[test]
    fn a_token_without_policies_and_a_name_that_moves_the_cursor_are_refused() {
        let table = TokenTable::default();
        let none = NewToken { policies: Vec::new(), ..new(None) };
        assert!(matches!(table.with_token(none, id(1), [0; 32], at(1)), Err(TokenError::Policies)));
        let odd = NewToken { name: "a\x1b[2J".to_owned(), ..new(None) };
        assert!(matches!(table.with_token(odd, id(1), [0; 32], at(1)), Err(TokenError::Name)));
        let unknown = table.without_token("nothing", at(1));
        assert!(matches!(unknown, Err(TokenError::Unknown)));
    }
}
