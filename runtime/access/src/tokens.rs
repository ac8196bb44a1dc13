//! The tokens of a running agent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_model::access::{
    AccessPolicy, AclConfig, KeptToken, KeptTokens, Level, Rights, TokenId,
};
use ostler_model::clock::{self, Clock};
use ostler_model::digest::Digest;
use ostler_model::limits::{TOKEN_CHANGES_MAX, TOKEN_TEXT_BYTES_MAX, TOKEN_WRITE_WALL_MAX};
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_state::{Key, StateError, StateStore};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::secrets::{SecretError, digest};
use super::table::{NewToken, ShownToken, Table, TokenChange, TokenError};

/// Why tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The secret of a configured one.
    #[error("token {name:?} of the configuration")]
    Secret {
        /// Its name.
        name: String,
        /// Why.
        source: SecretError,
    },
    /// Two have the same secret.
    #[error("tokens {one:?} and {other:?} of the configuration have the same secret")]
    Same {
        /// One.
        one: String,
        /// The other.
        other: String,
    },
    /// Those that were made over the API cannot be read.
    #[error("the tokens on record cannot be read; `ostler state` says what is there")]
    State(#[from] StateError),
}

/// Somebody who sent a token.
#[derive(Clone, Debug)]
pub struct Bearer {
    /// What is kept of the token.
    pub token: KeptToken,
    /// What they may do.
    pub rights: Rights,
    revoked: CancellationToken,
    clock: Clock,
}

impl Bearer {
    /// Is the token changed, removed or ended?
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero()) || self.revoked.is_cancelled()
    }

    /// Until it expires, if it does.
    fn left(&self) -> Option<Duration> {
        self.token.expires.map(|end| end.left(self.clock.now()))
    }

    /// Wait until the token is changed, removed or ended: what goes on for it ends then.
    pub async fn ended(&self) {
        let expired = async {
            match self.left() {
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

/// A token that was made, with its secret: shown once.
#[derive(Clone, Debug)]
pub struct Created {
    /// What is kept of it.
    pub token: KeptToken,
    /// Its secret.
    pub secret: String,
}

/// The tokens of an agent. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    enabled: bool,
    state: StateStore,
    clock: Clock,
    rng: Rng,
    held: Mutex<Held>,
    /// One change at a time: what is decided is true until it is on disk.
    turn: tokio::sync::Mutex<()>,
    /// Places for those that wait.
    places: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Held {
    table: Table,
    /// Who was let in, by token.
    revocations: HashMap<TokenId, CancellationToken>,
}

impl Held {
    fn revoke(&mut self, accessor: TokenId) {
        if let Some(revocation) = self.revocations.remove(&accessor) {
            revocation.cancel();
        }
    }
}

impl Tokens {
    /// Those of the configuration and those on record.
    ///
    /// # Errors
    /// When a secret of the configuration or the record cannot be read.
    pub fn load(
        state: StateStore,
        clock: Clock,
        rng: Rng,
        config: &AclConfig,
    ) -> Result<Self, TokensError> {
        let kept = state.get::<KeptTokens>(&Key::Tokens)?.unwrap_or_default();
        let held = Held { table: Table::new(kept), ..Held::default() };
        let (held, turn) = (Mutex::new(held), tokio::sync::Mutex::default());
        let places = Arc::new(Semaphore::new(TOKEN_CHANGES_MAX));
        let inner = Inner { enabled: config.enabled, state, clock, rng, held, turn, places };
        let tokens = Self(Arc::new(inner));
        tokens.configure(config)?;
        Ok(tokens)
    }

    /// Those of the configuration are these now. Who bears one that is gone or changed is let in no longer, and
    /// what goes on for them ends. Whether tokens are needed at all stays as it was. Says whether one of them
    /// is another now, or is gone or new.
    ///
    /// # Errors
    /// When a secret cannot be read; all stays as it was then.
    pub fn configure(&self, config: &AclConfig) -> Result<bool, TokensError> {
        let configured = configured(config, self.0.clock.now())?;
        let mut held = self.held();
        let known = held.table.configured();
        let more = configured.keys().any(|name| !known.contains_key(name));
        let ended = held.table.configure(configured);
        let differs = more || !ended.is_empty();
        for accessor in ended {
            held.revoke(accessor);
        }
        Ok(differs)
    }

    /// Does a request over TCP need one?
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.0.enabled
    }

    /// Whose secret this is.
    #[must_use]
    pub fn bearer(&self, secret: &str) -> Option<Bearer> {
        if !self.0.enabled || secret.is_empty() || secret.len() > TOKEN_TEXT_BYTES_MAX {
            return None;
        }
        let digest = Digest::of(secret.as_bytes());
        let mut held = self.held();
        let token = held.table.bearer(digest.as_bytes(), self.0.clock.now())?.clone();
        let revoked = held.revocations.entry(token.accessor).or_default().clone();
        let rights = Rights::of(&token.policies);
        Some(Bearer { token, rights, revoked, clock: self.0.clock.clone() })
    }

    /// All that have not ended.
    #[must_use]
    pub fn list(&self) -> Vec<ShownToken> {
        self.held().table.list(self.0.clock.now())
    }

    /// Count of changes so far.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.held().table.kept().index
    }

    /// Make a token. It is durable when this returns.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn create(&self, new: NewToken) -> Result<Created, TokenError> {
        let secret = self.0.rng.uuid().to_string();
        let (accessor, hash) = (self.accessor(), *Digest::of(secret.as_bytes()).as_bytes());
        let decide = move |table: &Table, now| table.with(new, accessor, hash, now);
        let token = self.change("made", decide).await?;
        Ok(Created { token, secret })
    }

    /// Make the first token, which may do everything: once.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn bootstrap(&self) -> Result<Created, TokenError> {
        let secret = self.0.rng.uuid().to_string();
        let (accessor, hash) = (self.accessor(), *Digest::of(secret.as_bytes()).as_bytes());
        let all = vec![AccessPolicy { level: Level::Admin, namespace: None }];
        let decide = move |table: &Table, now| table.bootstrapped(accessor, hash, all, now);
        let token = self.change("made as the first one", decide).await?;
        Ok(Created { token, secret })
    }

    /// Give a token another name and other policies. What goes on for its bearers ends.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn update(&self, accessor: &str, to: TokenChange) -> Result<KeptToken, TokenError> {
        let accessor = accessor.to_owned();
        self.change("changed", move |table, now| table.changed(&accessor, to, now)).await
    }

    /// Remove a token. What goes on for its bearers ends.
    ///
    /// # Errors
    /// See [`TokenError`].
    pub async fn delete(&self, accessor: &str) -> Result<(), TokenError> {
        let accessor = accessor.to_owned();
        let decide = move |table: &Table, now| table.without(&accessor, now);
        self.change("removed", decide).await.map(drop)
    }

    fn accessor(&self) -> TokenId {
        TokenId::new(self.0.rng.uuid())
    }

    /// Decide, write and do, one change after the other. It all belongs to a task: who hangs up half-way leaves
    /// neither disk and memory apart nor somebody let in whose token is gone.
    async fn change(
        &self,
        what: &'static str,
        decide: impl FnOnce(&Table, Timestamp) -> Result<(KeptTokens, KeptToken), TokenError>
        + Send
        + 'static,
    ) -> Result<KeptToken, TokenError> {
        if !self.0.enabled {
            return Err(TokenError::Disabled);
        }
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place = place.map_err(|_| TokenError::Busy)?;
        let own = self.clone();
        let changed = tokio::spawn(async move {
            let _place = place;
            let _turn = own.0.turn.lock().await;
            let (next, token) = decide(&own.held().table, own.0.clock.now())?;
            own.0.state.put(&Key::Tokens, &next).await?;
            let mut held = own.held();
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

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens of the configuration, with what is known of their secrets.
fn configured(
    config: &AclConfig,
    now: Timestamp,
) -> Result<BTreeMap<String, KeptToken>, TokensError> {
    let mut by_secret: HashMap<[u8; 32], &String> = HashMap::new();
    let mut tokens = BTreeMap::new();
    for (name, token) in &config.tokens {
        let secret = digest(&token.secret)
            .map_err(|source| TokensError::Secret { name: name.clone(), source })?;
        if let Some(one) = by_secret.insert(secret, name) {
            return Err(TokensError::Same { one: one.clone(), other: name.clone() });
        }
        let kept = KeptToken {
            accessor: accessor_of(name),
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

/// The same over restarts, and no secret.
fn accessor_of(name: &str) -> TokenId {
    let digest = Digest::of(format!("configured token {name}").as_bytes());
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
        Tokens::load(state.clone(), Clock::system(), Rng::seeded(1), config).unwrap()
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
        assert!(bearer.rights.allow_everywhere(Level::Read));
        assert!(!bearer.rights.allow_somewhere(Level::Submit));
        assert!(again.bearer(&made.token.accessor.to_string()).is_none());
        let record: KeptTokens = state.get(&Key::Tokens).unwrap().unwrap();
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
        tokens.bearer(&ending.secret).unwrap().ended().await;
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
            bearer.ended().await;
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
        // Begun, and given up before it is done.
        let begun = removal.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(begun.is_pending());
        drop(removal);
        bearer.ended().await;
        assert!(bearer.is_ended() && tokens.bearer(&made.secret).is_none());
        // What came after it did not undo it.
        tokens.create(reading(None)).await.unwrap();
        assert!(tokens.bearer(&made.secret).is_none());
    }

    #[tokio::test]
    async fn a_reloaded_configuration_lets_in_its_tokens_alone() {
        let state = StateStore::in_memory().unwrap();
        let secret = "a-secret-of-the-configuration";
        let source = SecretSource::Digest(Digest::of(secret.as_bytes()));
        let token = ConfiguredToken { secret: source, policies: vec!["admin".parse().unwrap()] };
        let with = AclConfig { tokens: [("ops".to_owned(), token.clone())].into(), ..on() };
        let tokens = tokens(&state, &with);
        let bearer = tokens.bearer(secret).unwrap();
        tokens.configure(&with).unwrap();
        assert!(clock::timeout(Duration::from_millis(1), bearer.ended()).await.is_none());
        tokens.configure(&on()).unwrap();
        bearer.ended().await;
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
