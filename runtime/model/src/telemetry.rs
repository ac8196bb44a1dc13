//! What of the agent is told to collectors of telemetry.

/// The `telemetry` block of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Traces are sent; absent: only where the environment names a collector.
    pub traces: Option<TracesConfig>,
}

/// Its `traces` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// Where the collector takes OTLP over HTTP, without the path; what the environment says unless given.
    pub endpoint: Option<String>,
    /// How many of 100 traces that begin at this agent are recorded.
    pub sample_percent: u8,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self { endpoint: None, sample_percent: Self::SAMPLE_PERCENT }
    }
}

impl TracesConfig {
    /// All of them, unless given.
    pub const SAMPLE_PERCENT: u8 = 100;

    /// Check the address of a collector.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn checked_endpoint(text: String) -> Result<String, NotCollector> {
        let right = |url: url::Url| {
            matches!(url.scheme(), "http" | "https")
                && url.host_str().is_some_and(|host| !host.is_empty())
                && url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        if text.parse().is_ok_and(right) { Ok(text) } else { Err(NotCollector) }
    }
}

/// The text is no address of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "endpoint must be http:// or https:// with host and port, as in \"http://127.0.0.1:4318\"; credentials go into \
     OTEL_EXPORTER_OTLP_HEADERS"
)]
pub struct NotCollector;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_reached_over_http_and_its_address_holds_no_secrets() {
        for right in ["http://127.0.0.1:4318", "https://c.example/otlp", "http://[::1]:4318/"] {
            assert_eq!(TracesConfig::checked_endpoint(right.to_owned()), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "127.0.0.1:4318",
            "grpc://c.example",
            "http://",
            "http://user@c.example",
            "http://c.example/?a",
        ] {
            let checked = TracesConfig::checked_endpoint(wrong.to_owned());
            assert_eq!(checked, Err(NotCollector), "{wrong}");
        }
    }
}
