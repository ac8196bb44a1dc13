//! Which telemetry of the agent is sent to collectors.

/// The `telemetry` block of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// How traces are sent; absent: they are sent only where the environment names a collector.
    pub traces: Option<TracesConfig>,
}

/// The `traces` block of the `telemetry` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// Address of the collector for OTLP over HTTP, without the path; that of the environment
    /// unless given.
    pub endpoint: Option<String>,
    /// Percentage of the traces beginning at this agent that are recorded.
    pub sample_percent: u8,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self { endpoint: None, sample_percent: Self::SAMPLE_PERCENT }
    }
}

impl TracesConfig {
    /// Default percentage: all traces are recorded.
    pub const SAMPLE_PERCENT: u8 = 100;

    /// Check the address of a collector.
    ///
    /// # Errors
    /// When it is no valid address of a collector.
    pub fn check_endpoint(text: String) -> Result<String, NotCollector> {
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
            assert_eq!(TracesConfig::check_endpoint(right.to_owned()), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "127.0.0.1:4318",
            "grpc://c.example",
            "http://",
            "http://user@c.example",
            "http://c.example/?a",
        ] {
            let checked = TracesConfig::check_endpoint(wrong.to_owned());
            assert_eq!(checked, Err(NotCollector), "{wrong}");
        }
    }
}
