//! Sending traces of jobs to a collector, if the configuration asks for it or the environment names
//! one.

use ostler_model::clock;
use ostler_model::telemetry::{TelemetryConfig, TracesConfig};
use ostler_trace::{BUILT, NOT_BUILT, Sending};

/// Variables of OpenTelemetry that name a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Other variables of OpenTelemetry that have an effect.
const HEEDED: [&str; 5] = [
    DISABLED,
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
];
/// Variables that name the protocol; there is only one protocol.
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"];
const PROTOCOL: &str = "http/protobuf";
/// The variable that switches everything off.
const DISABLED: &str = "OTEL_SDK_DISABLED";

/// What the configuration and the environment ask for.
#[derive(Debug, PartialEq, Eq)]
enum TracePlan {
    Nothing,
    Send(TracesConfig),
    /// This variable names a collector, but the program cannot send traces.
    InVain(&'static str),
}

/// Why a configuration cannot be used by a program that was built with or without traces.
pub(super) fn refusal(config: &TelemetryConfig, built: bool) -> Option<&'static str> {
    (config.traces.is_some() && !built).then_some(NOT_BUILT)
}

fn plan_traces(
    config: &TelemetryConfig,
    built: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> TracePlan {
    let given = |name: &str| variable(name).filter(|text| !text.is_empty());
    if given(DISABLED).is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return TracePlan::Nothing;
    }
    let named = ENDPOINTS.into_iter().find(|name| given(name).is_some());
    match (&config.traces, named) {
        (Some(traces), _) => TracePlan::Send(traces.clone()),
        (None, Some(_)) if built => TracePlan::Send(TracesConfig::default()),
        (None, Some(name)) => TracePlan::InVain(name),
        (None, None) => TracePlan::Nothing,
    }
}

/// The names of variables of OpenTelemetry that are set and have no effect.
fn unheeded_variables(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let unheeded = |(name, value): &(String, String)| {
        let known = |names: &[&str]| names.contains(&name.as_str());
        let heeded = known(&ENDPOINTS) || known(&HEEDED) || known(&PROTOCOLS) && value == PROTOCOL;
        name.starts_with("OTEL_") && !heeded
    };
    let mut names: Vec<String> = variables.filter(unheeded).map(|(name, _)| name).collect();
    names.sort();
    names
}

/// Begin to send traces, if the configuration or the environment asks for it.
///
/// # Errors
/// When traces cannot be sent; the text says why.
pub(super) fn start_traces(config: &TelemetryConfig) -> Result<Option<Sending>, String> {
    match plan_traces(config, BUILT, |name| std::env::var(name).ok()) {
        TracePlan::Nothing => Ok(None),
        TracePlan::Send(traces) => {
            let texts = std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
            });
            for name in unheeded_variables(texts) {
                tracing::warn!("{name} has no effect on the traces of the agent");
            }
            ostler_trace::start(&traces).map(Some)
        }
        TracePlan::InVain(name) => {
            tracing::warn!("{name} is set: {NOT_BUILT}, and {name} unset");
            Ok(None)
        }
    }
}

/// Send the rest of the traces before the program ends, within a time limit.
pub(super) async fn end_traces(sending: Option<Sending>) {
    if let Some(sending) = sending {
        // An error does not matter: the program ends anyway.
        let _ends = clock::run_blocking(move || sending.end()).await;
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
        let why = refusal(&asked(), false).unwrap_or_default();
        assert!(why.contains("--features otel"), "it names the feature: {why}");
        assert_eq!(refusal(&asked(), true), None);
        assert_eq!(refusal(&TelemetryConfig::default(), false), None);
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
        let named = unheeded_variables(set.into_iter());
        assert_eq!(named, ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_TRACES_SAMPLER"]);
    }

    #[test]
    fn traces_are_sent_where_the_configuration_or_a_variable_says_so() {
        let none = TelemetryConfig::default();
        let with = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        let nothing = with("", "");
        assert_eq!(plan_traces(&none, true, nothing), TracePlan::Nothing);
        assert_eq!(plan_traces(&asked(), true, nothing), TracePlan::Send(TracesConfig::default()));
        for name in ENDPOINTS {
            let named = with(name, "http://c:4318");
            assert_eq!(plan_traces(&none, true, named), TracePlan::Send(TracesConfig::default()));
            assert_eq!(plan_traces(&none, false, named), TracePlan::InVain(name));
            assert_eq!(plan_traces(&none, true, with(name, "")), TracePlan::Nothing);
        }
        assert_eq!(plan_traces(&asked(), true, with(DISABLED, "true")), TracePlan::Nothing);
    }
}
