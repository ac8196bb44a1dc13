//! SIGHUP: tokens of the configuration and the certificate of the API, while the agent runs.

use ostler_access::Tokens;
use ostler_agent::reload::{KeyReport, KeyVerdict, ReloadPart};
use ostler_api::server::ApiTls;
use ostler_model::causes;
use ostler_model::config::AgentConfig;
use ostler_model::ports::BoxFuture;

/// Applies the tokens of the new configuration, and reads the files of secrets
/// and certificates again.
pub(super) struct ApiReload {
    pub(super) tokens: Tokens,
    pub(super) tls: Option<ApiTls>,
}

const TOKENS: &str = "acl.token";
const TLS: &str = "tls";

impl ReloadPart for ApiReload {
    fn keys(&self) -> &'static [&'static str] {
        &[TOKENS, TLS]
    }

    fn reload<'a>(
        &'a self,
        running: &'a AgentConfig,
        new: &'a AgentConfig,
    ) -> BoxFuture<'a, Vec<KeyReport>> {
        Box::pin(async move {
            let mut reports = Vec::new();
            let mut tell =
                |key: &str, verdict| reports.push(KeyReport { key: key.to_owned(), verdict });
            // A file with a secret may have changed though its block has not.
            match self.tokens.configure(&new.acl) {
                Ok(false) if running.acl.tokens == new.acl.tokens => {}
                Ok(_) => tell(TOKENS, KeyVerdict::Applied),
                Err(error) => tell(TOKENS, KeyVerdict::Refused(causes::chain(&error))),
            }
            // Certificates in other files need a new listener.
            let same = running.cluster.tls == new.cluster.tls;
            match self.tls.as_ref().filter(|_| same).map(ApiTls::reload) {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => tell(TLS, KeyVerdict::Applied),
                Some(Err(error)) => tell(TLS, KeyVerdict::Refused(causes::chain(&error))),
            }
            reports
        })
    }
}
