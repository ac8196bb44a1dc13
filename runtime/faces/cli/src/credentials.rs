//! The credentials between a command and an agent: tokens and certificates.
//!
//! ```text
//! --token-file ─► OSTLER_TOKEN ─► NOMAD_TOKEN, at a URL alone
//! --ca-cert ────► NOMAD_CACERT ─► the system's authorities
//! NOMAD_CLIENT_CERT, NOMAD_CLIENT_KEY, NOMAD_TLS_SERVER_NAME
//! ```
//! A `NOMAD_TOKEN` in the environment, which is for some cluster, is not sent to the agent of this
//! machine.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::args::client::CredentialArgs;
use super::connect::CliError;
use ostler_api::client::{AgentEndpoint, ApiClient, ClientTls, ClientTlsFiles};
use ostler_model::causes;
use ostler_model::limits::TOKEN_TEXT_BYTES_MAX;

/// Add the token and the certificates to a client, as far as they are given.
pub(super) fn add_credentials(
    client: ApiClient,
    args: &CredentialArgs,
) -> Result<ApiClient, CliError> {
    let at_url = matches!(client.endpoint(), AgentEndpoint::Tcp { .. });
    let client = match find_token(args, at_url)? {
        Some(secret) => client.with_token(&secret),
        None => client,
    };
    if !matches!(client.endpoint(), AgentEndpoint::Tcp { tls: true, .. }) {
        return Ok(client);
    }
    let path = |name| variable(name).map(PathBuf::from);
    let files = ClientTlsFiles {
        authorities: args.ca_cert.clone().or_else(|| path("NOMAD_CACERT")),
        own: path("NOMAD_CLIENT_CERT").zip(path("NOMAD_CLIENT_KEY")),
        name: variable("NOMAD_TLS_SERVER_NAME"),
    };
    let tls = ClientTls::read(&files);
    Ok(client.with_tls(tls.map_err(|error| CliError::Wrong(causes::chain(&error)))?))
}

fn find_token(args: &CredentialArgs, at_url: bool) -> Result<Option<String>, CliError> {
    let secret = match &args.token_file {
        Some(file) => Some(read_token_file(file)?),
        None => variable("OSTLER_TOKEN").or_else(|| variable("NOMAD_TOKEN").filter(|_| at_url)),
    };
    match secret.as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(secret)
            if secret.len() <= TOKEN_TEXT_BYTES_MAX
                && secret.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            Ok(Some(secret.to_owned()))
        }
        Some(_) => Err(CliError::Wrong(format!(
            "the token has characters that are not allowed in tokens, or more than {TOKEN_TEXT_BYTES_MAX} of them"
        ))),
    }
}

fn read_token_file(file: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let most = u64::try_from(TOKEN_TEXT_BYTES_MAX).unwrap_or(u64::MAX).saturating_mul(2);
    let read = File::open(file).and_then(|file| file.take(most).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(error) => {
            Err(CliError::Wrong(format!("cannot read the token in {}: {error}", file.display())))
        }
    }
}

/// The value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}
