//! Traces of jobs go to a collector where the configuration asks for it, or the environment names one.

use ostler_model::clock;
use ostler_model::telemetry::{TelemetryConfig, TracesConfig};
use ostler_trace::{BUILT, NOT_BUILT, Sending};

/// Variables of OpenTelemetry that name a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Others that are heeded.
const HEEDED: [&str; 5] = [
    DISABLED,
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
];
/// Those that name the protocol, and the only one there is.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"];
const PROTOCOL: &str = "http/protobuf";
/// The one that switches everything off.
const DISABLED: &str = "OTEL_SDK_DISABLED";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Nothing,
    Send(TracesConfig),
    /// This variable names a collector, and the program cannot send.
    InVain(&'static str),
}

/// Why a configuration cannot be used by a program that was built so.
pub(super) fn refused(config: &TelemetryConfig, built: bool) -> Option<&'static str> {
    (config.traces.is_some() && !built).then_some(NOT_BUILT)
}

fn wanted(
    config: &TelemetryConfig,
    built: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Wanted {
    let given = |name: &str| variable(name).filter(|text| !text.is_empty());
    if given(DISABLED).is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Wanted::Nothing;
    }
    let named = ENDPOINTS.into_iter().find(|name| given(name).is_some());
    match (&config.traces, named) {
        (Some(traces), _) => Wanted::Send(traces.clone()),
        (None, Some(_)) if built => Wanted::Send(TracesConfig::default()),
        (None, Some(name)) => Wanted::InVain(name),
        (None, None) => Wanted::Nothing,
    }
}

/// Variables of OpenTelemetry that say something which does not happen.
fn unheeded(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let unheeded = |(name, value): &(String, String)| {
        let known = |names: &[&str]| names.contains(&name.as_str());
        let heeded = known(&ENDPOINTS) || known(&HEEDED) || known(&PROTOCOLS) && value == PROTOCOL;
        name.starts_with("OTEL_") && !heeded
    };
    let mut names: Vec<String> = variables.filter(unheeded).map(|(name, _)| name).collect();
    names.sort();
    names
}

/// Send traces from now on, where they are wanted.
///
/// # Errors
/// When they cannot be sent: why.
pub(super) fn begin(config: &TelemetryConfig) -> Result<Option<Sending>, String> {
    match wanted(config, BUILT, |name| std::env::var(name).ok()) {
        Wanted::Nothing => Ok(None),
        Wanted::Send(traces) => {
            let texts = std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            });
            for name in unheeded(texts) {
                tracing::warn!("{name} has no effect on the traces of the agent");
            }
            ostler_trace::start(&traces).map(Some)
        }
        Wanted::InVain(name) => {
            tracing::warn!("{name} is set: {NOT_BUILT}, and {name} unset");
            Ok(None)
        }
    }
}

/// The program ends: what is to be sent is, within a time.
pub(super) async fn end(sending: Option<Sending>) {
    if let Some(sending) = sending {
        // An error is a program that ends anyway.
        let _ends = clock::blocking(move || sending.end()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> TelemetryConfig {
        TelemetryConfig { traces: Some(TracesConfig::default()) }
    }

    #[test]
    fn a_program_that_was_built_without_traces_refuses_a_configuration_that_asks_for_them() {
        let why = refused(&asked(), false).unwrap_or_default();
        assert!(why.contains("--features otel"), "it names the feature: {why}");
        assert_eq!(refused(&asked(), true), None);
        assert_eq!(refused(&TelemetryConfig::default(), false), None);
    }

    #[test]
    fn a_variable_that_has_no_effect_is_named() {
        let set = [
            ("OTEL_TRACES_SAMPLER", "always_off"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("HOME", "/"),
        ];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let named = unheeded(set.into_iter());
        assert_eq!(named, ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_TRACES_SAMPLER"]);
    }

    #[test]
    fn traces_are_sent_where_the_configuration_or_a_variable_says_so() {
        let none = TelemetryConfig::default();
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        let nothing = with("", "");
        assert_eq!(wanted(&none, true, nothing), Wanted::Nothing);
        assert_eq!(wanted(&asked(), true, nothing), Wanted::Send(TracesConfig::default()));
        for name in ENDPOINTS {
            let named = with(name, "http://c:4318");
            assert_eq!(wanted(&none, true, named), Wanted::Send(TracesConfig::default()));
            assert_eq!(wanted(&none, false, named), Wanted::InVain(name));
            assert_eq!(wanted(&none, true, with(name, "")), Wanted::Nothing);
        }
        assert_eq!(wanted(&asked(), true, with(DISABLED, "true")), Wanted::Nothing);
    }
}
