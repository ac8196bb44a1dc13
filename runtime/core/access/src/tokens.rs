//! The tokens of a running agent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_model::access::{
    AccessLevel, AccessPolicy, AclConfig, Rights, TokenId, TokenRecord, TokenRecords,
};
use ostler_model::clock::{self, Clock};
use ostler_model::digest::Digest;
use ostler_model::limits::{TOKEN_CHANGES_MAX, TOKEN_TEXT_BYTES_MAX, TOKEN_WRITE_WALL_MAX};
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_state::records::TokensKey;
use ostler_state::{StateError, StateStore};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::secrets::{SecretError, digest};
use super::table::{NewToken, ShownToken, TokenChange, TokenError, TokenTable};

/// Why tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The secret of a configured token cannot be used.
    #[error("token {name:?} of the configuration")]
    Secret {
        /// The name of the token in the configuration.
        name: String,
        /// The error of its secret.
        source: SecretError,
    },
    /// Two configured tokens have the same secret.
    #[error("tokens {one:?} and {other:?} of the configuration have the same secret")]
    Same {
        /// The name of one token.
        one: String,
        /// The name of the other token.
        other: String,
    },
    /// The tokens that were created over the API cannot be read.
    #[error("the tokens on record cannot be read; `ostler state check` says what is wrong")]
    State(#[from] StateError),
}

/// The sender of a valid token.
#[derive(Clone, Debug)]
pub struct Bearer {
    /// The record of the token.
    pub token: TokenRecord,
    /// What the bearer may do.
    pub rights: Rights,
    revoked: CancellationToken,
    clock: Clock,
}

impl Bearer {
    /// Whether the token was changed or removed, or has expired.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero()) || self.revoked.is_cancelled()
    }

    /// The time until the token expires, if it ever does.
    fn time_left(&self) -> Option<Duration> {
        self.token.expires.map(|end| end.remaining_at(self.clock.now()))
    }

    /// Wait until the token is changed, removed or expired. Streams of its bearer end then.
    pub async fn wait_until_ended(&self) {
        let expired = async {
            match self.time_left() {
                Some(left) => clock::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.revoked.cancelled() => {}
            () = expired => {}
        }
    }
}

/// A token that was just created, with its secret, which is shown only once.
#[derive(Clone, Debug)]
pub struct CreatedToken {
    /// The record of the token.
    pub token: TokenRecord,
    /// The secret that the bearer sends.
    pub secret: String,
}

/// The tokens of an agent. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<TokensInner>);

#[derive(Debug)]
struct TokensInner {
    enabled: bool,
    state: StateStore,
    clock: Clock,
    rng: Rng,
    held: Mutex<TokensState>,
    /// Allows one change at a time, so that a decision still holds when it is on disk.
    turn: tokio::sync::Mutex<()>,
    /// Limits how many changes may wait.
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct TokensState {
    table: TokenTable,
    /// The cancellation of everybody who was let in, by token.
    revocations: HashMap<TokenId, CancellationToken>,
}

impl TokensState {
    fn revoke(&mut self, accessor: TokenId) {
        if let Some(revocation) = self.revocations.remove(&accessor) {
            revocation.cancel();
        }
    }
}

impl Tokens {
    /// Load the tokens of the configuration and those on record.
    ///
    /// # Errors
    /// When a secret of the configuration or the record cannot be read.
    pub fn load(
        state: StateStore,
        clock: Clock,
        rng: Rng,
        config: &AclConfig,
    ) -> Result<Self, TokensError> {
        let kept = state.get::<TokenRecords>(&TokensKey::of())?.unwrap_or_default();
        let held = TokensState { table: TokenTable::new(kept), ..TokensState::default() };
        let (held, turn) = (Mutex::new(held), tokio::sync::Mutex::default());
        let places = Arc::new(Semaphore::new(TOKEN_CHANGES_MAX));
        let inner = TokensInner { enabled: config.enabled, state, clock, rng, held, turn, places };
        let tokens = Self(Arc::new(inner));
        tokens.configure(config)?;
        Ok(tokens)
    }

    /// Replace the tokens of the configuration. The bearer of a token that is gone or changed is no
    /// longer let in, and its streams end. Whether tokens are needed at all does not change.
    /// Returns whether a token was changed, removed or added.
    ///
    /// # Errors
    /// When a secret cannot be read. Nothing changes then.
    pub fn configure(&self, config: &AclConfig) -> Result<bool, TokensError> {
        let configured = configured_tokens(config, self.0.clock.now())?;
        let mut held = self.lock_state();
        let known = held.table.configured_tokens();
        let more = configured.keys().any(|name| !known.contains_key(name));
        let ended = held.table.configure(configured);
        let differs = more || !ended.is_empty();
        for accessor in ended {
            held.revoke(accessor);
        }
        Ok(differs)
    }

    /// Whether a request over TCP needs a token.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.0.enabled
    }

    /// The bearer of the token with this secret, if there is one.
    #[must_use]
    pub fn bearer(&self, secret: &str) -> Option<Bearer> {
        if !self.0.enabled || secret.is_empty() || secret.len() > TOKEN_TEXT_BYTES_MAX {
            return None;
        }
        let digest = Digest::compute(secret.as_bytes());
        let mut held = self.lock_state();
        let token = held.table.bearer(digest.as_bytes(), self.0.clock.now())?.clone();
        let revoked = held.revocations.entry(token.accessor).or_default().clone();
        let rights = Rights::from_policies(&token.policies);
        Some(Bearer { token, rights, revoked, clock: self.0.clock.clone() })
    }

    /// All tokens that have not expired.
    #[must_use]
    pub fn list(&self) -> Vec<ShownToken> {
        self.lock_state().table.list(self.0.clock.now())
    }

    /// The number of changes so far.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.lock_state().table.stored_tokens().index
    }

    /// Create a token. It is durable when this returns.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn create(&self, new: NewToken) -> Result<CreatedToken, TokenError> {
        let secret = self.0.rng.uuid().to_string();
        let (accessor, hash) =
            (self.new_accessor(), *Digest::compute(secret.as_bytes()).as_bytes());
        let decide = move |table: &TokenTable, now| table.with_token(new, accessor, hash, now);
        let token = self.change("made", decide).await?;
        Ok(CreatedToken { token, secret })
    }

    /// Create the first token, which may do everything. This works only once.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn bootstrap(&self) -> Result<CreatedToken, TokenError> {
        let secret = self.0.rng.uuid().to_string();
        let (accessor, hash) =
            (self.new_accessor(), *Digest::compute(secret.as_bytes()).as_bytes());
        let all = vec![AccessPolicy { level: AccessLevel::Admin, namespace: None }];
        let decide =
            move |table: &TokenTable, now| table.with_first_token(accessor, hash, all, now);
        let token = self.change("made as the first one", decide).await?;
        Ok(CreatedToken { token, secret })
    }

    /// Give a token another name and other policies. The streams of its bearers end.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn update(&self, accessor: &str, to: TokenChange) -> Result<TokenRecord, TokenError> {
        let accessor = accessor.to_owned();
        self.change("changed", move |table, now| table.with_change(&accessor, to, now)).await
    }

    /// Remove a token. The streams of its bearers end.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn delete(&self, accessor: &str) -> Result<(), TokenError> {
        let accessor = accessor.to_owned();
        let decide = move |table: &TokenTable, now| table.without_token(&accessor, now);
        self.change("removed", decide).await.map(drop)
    }

    fn new_accessor(&self) -> TokenId {
        TokenId::new(self.0.rng.uuid())
    }

    /// Decide on a change, write it to disk and apply it, one change after the other. All of this
    /// runs in a task of its own: a client that hangs up half-way neither leaves memory different
    /// from the disk, nor leaves the bearer of a removed token let in.
    async fn change(
        &self,
        what: &'static str,
        decide: impl FnOnce(&TokenTable, Timestamp) -> Result<(TokenRecords, TokenRecord), TokenError>
        + Send
        + 'static,
    ) -> Result<TokenRecord, TokenError> {
        if !self.0.enabled {
            return Err(TokenError::Disabled);
        }
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place = place.map_err(|_| TokenError::Busy)?;
        let own = self.clone();
        let changed = tokio::spawn(async move {
            let _place = place;
            let _turn = own.0.turn.lock().await;
            let (next, token) = decide(&own.lock_state().table, own.0.clock.now())?;
            own.0.state.put(&TokensKey::of(), &next).await?;
            let mut held = own.lock_state();
            held.table.apply(next);
            held.revoke(token.accessor);
            drop(held);
            tracing::info!(accessor = %token.accessor, name = token.name, "a token was {what}");
            Ok(token)
        });
        match clock::timeout(TOKEN_WRITE_WALL_MAX, changed).await {
            Some(Ok(changed)) => changed,
            Some(Err(_)) | None => Err(TokenError::Unanswered),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, TokensState> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records of the tokens in the configuration, by name.
fn configured_tokens(
    config: &AclConfig,
    now: Timestamp,
) -> Result<BTreeMap<String, TokenRecord>, TokensError> {
    let mut by_secret: HashMap<[u8; 32], &String> = HashMap::new();
    let mut tokens = BTreeMap::new();
    for (name, token) in &config.tokens {
        let secret = digest(&token.secret)
            .map_err(|source| TokensError::Secret { name: name.clone(), source })?;
        if let Some(one) = by_secret.insert(secret, name) {
            return Err(TokensError::Same { one: one.clone(), other: name.clone() });
        }
        let kept = TokenRecord {
            accessor: accessor_from_name(name),
            name: name.clone(),
            policies: token.policies.clone(),
            secret,
            created: now,
            expires: None,
            create_index: 1,
            modify_index: 1,
        };
        tokens.insert(name.clone(), kept);
    }
    Ok(tokens)
}

/// The public id of a configured token. It is the same after each restart, and is no secret.
fn accessor_from_name(name: &str) -> TokenId {
    let digest = Digest::compute(format!("configured token {name}").as_bytes());
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest.as_bytes()) {
        *to = *from;
    }
    TokenId::new(Uuid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::task::{Context, Waker};
    use std::time::Duration;

    use ostler_model::access::{ConfiguredToken, SecretSource};

    use super::*;

    fn on() -> AclConfig {
        AclConfig { enabled: true, tokens: BTreeMap::new() }
    }

    fn tokens(state: &StateStore, config: &AclConfig) -> Tokens {
        Tokens::load(state.clone(), Clock::system(), Rng::from_seed(1), config).unwrap()
    }

    fn reading(expires: Option<Timestamp>) -> NewToken {
        NewToken { name: "ci".to_owned(), policies: vec!["read".parse().unwrap()], expires }
    }

    #[tokio::test]
    async fn a_token_outlives_the_agent_and_its_secret_is_nowhere() {
        let state = StateStore::in_memory().unwrap();
        let made = tokens(&state, &on()).create(reading(None)).await.unwrap();
        let again = tokens(&state, &on());
        let bearer = again.bearer(&made.secret).unwrap();
        assert!(bearer.rights.allow_everywhere(AccessLevel::Read));
        assert!(!bearer.rights.allow_somewhere(AccessLevel::Submit));
        assert!(again.bearer(&made.token.accessor.to_string()).is_none());
        let record: TokenRecords = state.get(&TokensKey::of()).unwrap().unwrap();
        assert!(!format!("{record:?}").contains(&made.secret));
        again.delete(&made.token.accessor.to_string()).await.unwrap();
        assert!(tokens(&state, &on()).bearer(&made.secret).is_none());
    }

    #[tokio::test]
    async fn who_bears_a_token_hears_that_it_was_removed_changed_or_ended() {
        let state = StateStore::in_memory().unwrap();
        let tokens = tokens(&state, &on());
        let soon = clock::Clock::system().now().plus(Duration::from_millis(30));
        let ending = tokens.create(reading(Some(soon))).await.unwrap();
        tokens.bearer(&ending.secret).unwrap().wait_until_ended().await;
        for remove in [true, false] {
            let made = tokens.create(reading(None)).await.unwrap();
            let bearer = tokens.bearer(&made.secret).unwrap();
            let accessor = made.token.accessor.to_string();
            if remove {
                tokens.delete(&accessor).await.unwrap();
            } else {
                let to = TokenChange { name: String::new(), policies: made.token.policies };
                tokens.update(&accessor, to).await.unwrap();
            }
            bearer.wait_until_ended().await;
        }
    }

    #[tokio::test]
    async fn who_hangs_up_while_a_token_is_removed_leaves_nobody_let_in() {
        let state = StateStore::in_memory().unwrap();
        let tokens = tokens(&state, &on());
        let made = tokens.create(reading(None)).await.unwrap();
        let bearer = tokens.bearer(&made.secret).unwrap();
        let accessor = made.token.accessor.to_string();
        let mut removal = Box::pin(tokens.delete(&accessor));
        // It was started, and is dropped before it is done.
        let begun = removal.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(begun.is_pending());
        drop(removal);
        bearer.wait_until_ended().await;
        assert!(bearer.is_ended() && tokens.bearer(&made.secret).is_none());
        // A later change does not undo it.
        tokens.create(reading(None)).await.unwrap();
        assert!(tokens.bearer(&made.secret).is_none());
    }

    #[tokio::test]
    async fn a_reloaded_configuration_lets_in_its_tokens_alone() {
        let state = StateStore::in_memory().unwrap();
        let secret = "a-secret-of-the-configuration";
        let source = SecretSource::Digest(Digest::compute(secret.as_bytes()));
        let token = ConfiguredToken { secret: source, policies: vec!["admin".parse().unwrap()] };
        let with = AclConfig { tokens: [("ops".to_owned(), token.clone())].into(), ..on() };
        let tokens = tokens(&state, &with);
        let bearer = tokens.bearer(secret).unwrap();
        tokens.configure(&with).unwrap();
        assert!(
            clock::timeout(Duration::from_millis(1), bearer.wait_until_ended()).await.is_none()
        );
        tokens.configure(&on()).unwrap();
        bearer.wait_until_ended().await;
        assert!(tokens.bearer(secret).is_none());
        let twice = [("a".to_owned(), token.clone()), ("b".to_owned(), token)];
        let error = tokens.configure(&AclConfig { tokens: twice.into(), ..on() }).unwrap_err();
        assert!(error.to_string().contains("same secret"), "{error}");
    }

    #[tokio::test]
    async fn an_agent_that_asks_for_no_tokens_makes_none() {
        let state = StateStore::in_memory().unwrap();
        let tokens = tokens(&state, &AclConfig::default());
        assert!(matches!(tokens.bootstrap().await, Err(TokenError::Disabled)));
        assert!(tokens.bearer("anything").is_none());
    }
}
