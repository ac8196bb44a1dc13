//! The credentials that a node sends to servers. Pure.
//!
//! ```text
//! never registered ─ token of introduction, or none ─► Node.Register ─► registered
//! registered ─ secret; once servers have signed an identity, that ─► every call
//!      ├── heartbeats show no secret until one is refused: those before 1.8 want none, and an idle node says
//!      │   little else
//!      └── refused at a registration, and nobody introduces it: as one that was never registered
//! ```
//! Servers from 1.10 on sign identities, and may ask for an introduction; earlier ones know only
//! the secret. This follows what is known of their protocol; it was not tried against such servers.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The name of the key that signed an identity; servers sign anew when their key has changed. A
/// secret names no key.
pub(crate) fn signing_key(token: &str) -> Option<String> {
    let (head, _) = token.split_once('.')?;
    let head: serde_json::Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
    Some(head.get("kid")?.as_str()?.to_owned())
}

/// The part of the credentials that outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStanding {
    /// Whether servers have accepted a registration.
    pub registered: bool,
    /// The identity that servers have signed, if they have.
    pub identity: Option<String>,
}

/// The credentials of a node; see the module.
#[derive(Debug)]
pub(crate) struct NodeCredentials {
    secret: String,
    introduction: Option<String>,
    standing: NodeStanding,
    /// Whether a heartbeat without the secret was refused.
    beats_with_secret: bool,
}

impl NodeCredentials {
    pub(crate) const fn new(
        secret: String,
        introduction: Option<String>,
        standing: NodeStanding,
    ) -> Self {
        Self { secret, introduction, standing, beats_with_secret: false }
    }

    /// The token for a registration; may be empty.
    pub(crate) fn register_token(&self) -> &str {
        if self.standing.registered {
            return self.token();
        }
        self.introduction.as_deref().unwrap_or_default()
    }

    /// The token for every other call.
    pub(crate) fn token(&self) -> &str {
        self.standing.identity.as_deref().unwrap_or(&self.secret)
    }

    /// The token for a heartbeat; may be empty.
    pub(crate) fn beat_token(&self) -> &str {
        let secret = if self.beats_with_secret { self.secret.as_str() } else { "" };
        self.standing.identity.as_deref().unwrap_or(secret)
    }

    /// Note that servers refused a heartbeat. Returns whether another one is worth a try.
    pub(crate) fn note_beat_refused(&mut self) -> bool {
        !std::mem::replace(&mut self.beats_with_secret, true)
    }

    /// Note that servers have accepted a registration or a heartbeat, and may have signed an
    /// identity. Returns the new standing to record, if it has changed.
    pub(crate) fn note_accepted(&mut self, signed: Option<String>) -> Option<NodeStanding> {
        let before = self.standing.clone();
        self.standing.registered = true;
        // If signing failed, the identity is empty.
        if let Some(signed) = signed.filter(|signed| !signed.is_empty()) {
            self.standing.identity = Some(signed);
        }
        (self.standing != before).then(|| self.standing.clone())
    }

    /// Note that servers refused a registration, because they do not know the node, which may be of
    /// another region. Returns the new standing to record, if it has changed.
    pub(crate) fn note_refused(&mut self) -> Option<NodeStanding> {
        if self.introduction.is_some() || self.standing == NodeStanding::default() {
            return None;
        }
        self.standing = NodeStanding::default();
        Some(NodeStanding::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(introduction: Option<&str>) -> NodeCredentials {
        let introduction = introduction.map(str::to_owned);
        NodeCredentials::new("secret".to_owned(), introduction, NodeStanding::default())
    }

    #[test]
    fn a_node_introduces_itself_once_and_then_shows_its_secret_or_what_servers_signed() {
        let mut node = credentials(Some("introduction"));
        assert_eq!(node.register_token(), "introduction");
        let registered = NodeStanding { registered: true, identity: None };
        assert_eq!(node.note_accepted(None), Some(registered));
        assert_eq!((node.register_token(), node.token()), ("secret", "secret"));
        assert_eq!(node.note_accepted(Some(String::new())), None, "signing failed");
        let signed = node.note_accepted(Some("signed".to_owned())).unwrap();
        assert_eq!(signed.identity.as_deref(), Some("signed"));
        assert_eq!((node.register_token(), node.token()), ("signed", "signed"));
        assert_eq!(node.note_accepted(None), None, "nothing new");
    }

    #[test]
    fn a_heartbeat_shows_the_secret_once_one_without_it_was_refused() {
        let mut node = credentials(None);
        node.note_accepted(None);
        assert_eq!(node.beat_token(), "");
        assert!(node.note_beat_refused());
        assert_eq!(node.beat_token(), "secret");
        assert!(!node.note_beat_refused(), "it is not tried for ever");
        node.note_accepted(Some("signed".to_owned()));
        assert_eq!(node.beat_token(), "signed");
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
        assert_eq!(node.register_token(), "");
        assert_eq!(node.note_refused(), None);
        node.note_accepted(Some("signed".to_owned()));
        assert_eq!(node.note_refused(), Some(NodeStanding::default()));
        assert_eq!((node.register_token(), node.token()), ("", "secret"));
        let mut introduced = credentials(Some("introduction"));
        introduced.note_accepted(Some("signed".to_owned()));
        assert_eq!(introduced.note_refused(), None);
        assert_eq!(introduced.register_token(), "signed");
    }
}
