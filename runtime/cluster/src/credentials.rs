//! What a node shows servers of who it is. Pure.
//!
//! ```text
//! never registered ─ token of introduction, or none ─► Node.Register ─► registered
//! registered ─ secret; once servers have signed an identity, that ─► every call
//!      ├── heartbeats show no secret until one is refused: those before 1.8 want none, and an idle node says
//!      │   little else
//!      └── refused at a registration, and nobody introduces it: as one that was never registered
//! ```
//! Servers of 1.10 and later sign identities, and may ask for an introduction; those before know the secret
//! alone. Not tried against such servers: by what is known of their protocol.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The name of the key that an identity was signed with; servers sign anew after another one. A secret names
/// none.
pub(crate) fn signing_key(token: &str) -> Option<String> {
    let (head, _) = token.split_once('.')?;
    let head: serde_json::Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
    Some(head.get("kid")?.as_str()?.to_owned())
}

/// What of it outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Servers have taken a registration.
    pub registered: bool,
    /// What they have signed.
    pub identity: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Credentials {
    secret: String,
    introduction: Option<String>,
    standing: Standing,
    /// A heartbeat without it was refused.
    beats_with_secret: bool,
}

impl Credentials {
    pub(crate) const fn new(
        secret: String,
        introduction: Option<String>,
        standing: Standing,
    ) -> Self {
        Self { secret, introduction, standing, beats_with_secret: false }
    }

    /// Shown with a registration.
    pub(crate) fn to_register(&self) -> &str {
        if self.standing.registered {
            return self.token();
        }
        self.introduction.as_deref().unwrap_or_default()
    }

    /// Shown with every other call.
    pub(crate) fn token(&self) -> &str {
        self.standing.identity.as_deref().unwrap_or(&self.secret)
    }

    /// Shown with a heartbeat; may be empty.
    pub(crate) fn to_beat(&self) -> &str {
        let secret = if self.beats_with_secret { self.secret.as_str() } else { "" };
        self.standing.identity.as_deref().unwrap_or(secret)
    }

    /// Servers do not permit a heartbeat. Is another one worth a try?
    pub(crate) fn beat_refused(&mut self) -> bool {
        !std::mem::replace(&mut self.beats_with_secret, true)
    }

    /// Servers have answered a registration or a heartbeat, and may have signed an identity. What is to be on
    /// record now, where that has changed.
    pub(crate) fn accepted(&mut self, signed: Option<String>) -> Option<Standing> {
        let before = self.standing.clone();
        self.standing.registered = true;
        // Where signing failed there is an empty one.
        if let Some(signed) = signed.filter(|signed| !signed.is_empty()) {
            self.standing.identity = Some(signed);
        }
        (self.standing != before).then(|| self.standing.clone())
    }

    /// Servers do not permit a registration: they know no such node, of another region perhaps. What is to be
    /// on record now, where that has changed.
    pub(crate) fn refused(&mut self) -> Option<Standing> {
        if self.introduction.is_some() || self.standing == Standing::default() {
            return None;
        }
        self.standing = Standing::default();
        Some(Standing::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(introduction: Option<&str>) -> Credentials {
        let introduction = introduction.map(str::to_owned);
        Credentials::new("secret".to_owned(), introduction, Standing::default())
    }

    #[test]
    fn a_node_introduces_itself_once_and_then_shows_its_secret_or_what_servers_signed() {
        let mut node = credentials(Some("introduction"));
        assert_eq!(node.to_register(), "introduction");
        let registered = Standing { registered: true, identity: None };
        assert_eq!(node.accepted(None), Some(registered));
        assert_eq!((node.to_register(), node.token()), ("secret", "secret"));
        assert_eq!(node.accepted(Some(String::new())), None, "signing failed");
        let signed = node.accepted(Some("signed".to_owned())).unwrap();
        assert_eq!(signed.identity.as_deref(), Some("signed"));
        assert_eq!((node.to_register(), node.token()), ("signed", "signed"));
        assert_eq!(node.accepted(None), None, "nothing new");
    }

    #[test]
    fn a_heartbeat_shows_the_secret_once_one_without_it_was_refused() {
        let mut node = credentials(None);
        node.accepted(None);
        assert_eq!(node.to_beat(), "");
        assert!(node.beat_refused());
        assert_eq!(node.to_beat(), "secret");
        assert!(!node.beat_refused(), "it is not tried for ever");
        node.accepted(Some("signed".to_owned()));
        assert_eq!(node.to_beat(), "signed");
    }

    #[test]
    fn an_identity_names_the_key_it_was_signed_with() {
        let head = |text: &str| format!("{}.e30.c2ln", URL_SAFE_NO_PAD.encode(text));
        let named = head(r#"{"alg":"RS256","kid":"8f6a1d9c","typ":"JWT"}"#);
        assert_eq!(signing_key(&named).as_deref(), Some("8f6a1d9c"));
        let none = [
            "7a0b6f0e-5a43-4a1b-9c1d-2f1f6d3f0a11",
            "",
            ".",
            "a.b",
            &head("{\"kid\":7}"),
            &head("[]"),
        ];
        assert_eq!(none.map(signing_key), [const { None }; 6]);
    }

    #[test]
    fn a_node_that_servers_do_not_know_begins_anew_unless_somebody_introduces_it() {
        let mut node = credentials(None);
        assert_eq!(node.to_register(), "");
        assert_eq!(node.refused(), None);
        node.accepted(Some("signed".to_owned()));
        assert_eq!(node.refused(), Some(Standing::default()));
        assert_eq!((node.to_register(), node.token()), ("", "secret"));
        let mut introduced = credentials(Some("introduction"));
        introduced.accepted(Some("signed".to_owned()));
        assert_eq!(introduced.refused(), None);
        assert_eq!(introduced.to_register(), "signed");
    }
}
