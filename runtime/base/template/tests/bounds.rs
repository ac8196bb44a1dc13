//! Templates of strangers: whatever they say, they cost what the limits allow, and say where they are wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use ostler_template::{
    Delimiters, Dependency, Options, Outside, OutsideAnswer, RenderedTemplate, Template,
    TemplateProblem, Value,
};
use proptest::prelude::*;

struct Task;

impl Outside for Task {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name == "A").then(|| "a".to_owned())
    }

    fn ask(&self, what: &Dependency) -> OutsideAnswer {
        match what {
            Dependency::File(path) if path == "there" => OutsideAnswer::Is(Value::text("text")),
            Dependency::File(_) => OutsideAnswer::Refused("no such file".to_owned()),
            _ => OutsideAnswer::Missing,
        }
    }
}

fn render(text: &str, options: Options) -> Result<RenderedTemplate, String> {
    let template = Template::parse("t", text, &Delimiters::default());
    template.and_then(|template| template.render(&Task, options)).map_err(|e| e.to_string())
}

fn fails(text: &str) -> String {
    render(text, Options::default()).unwrap_err()
}

#[test]
fn a_mistake_has_line_and_column_and_says_what_to_do() {
    for (text, said) in [
        ("a\n  {{ nosuch }}", "t:2:6: there is no function \"nosuch\""),
        ("é {{ key \"a\" }}", "t:1:6: function key is not available: it asks Consul"),
        ("\n{{ secret \"a\" }}", "t:2:4: function secret is not available: it asks Vault"),
        ("{{ plugin \"ls\" }}", "t:1:4: function plugin is not available: it runs a program"),
        ("{{ if true }}\nx", "t:1:1: the if that begins here has no end"),
        ("x\n\n{{ parseInt \"z\" }}", "t:3:4: parseInt: \"z\" is not a whole number"),
        ("{{ range 5 }}{{ end }}", "t:1:10: range needs a list or a map, not a whole number"),
        ("{{ file \"gone\" }}", "t:1:4: file: no such file"),
        (
            "{{ define \"a\" }}\n{{ toUpper 1 }}{{ end }}{{ template \"a\" }}",
            "t:2:4: toUpper: argument 1",
        ),
    ] {
        let error = fails(text);
        assert!(error.starts_with(said), "{text:?}: {error}");
    }
}

#[test]
fn what_never_ends_or_grows_is_ended() {
    for (text, said) in [
        ("{{ define \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}", "nests more than"),
        (
            "{{ define \"a\" }}{{ executeTemplate \"a\" }}{{ end }}{{ template \"a\" }}",
            "nests more",
        ),
        ("{{ range loop 9223372036854775807 }}{{ end }}", "takes more than"),
        ("{{ range loop 1000000 }}xxxxxxxxxxxxxxxxxxxxxxxx{{ end }}", "writes more than"),
        (
            "{{ $x := \"aaaaaaaa\" }}{{ range loop 99 }}{{ $x = printf \"%s%s\" $x $x }}{{ end }}",
            "makes values of more than",
        ),
        ("{{ indent 1000000000 \"a\" }}", "makes values of more than"),
        (
            "{{ replaceAll \"\" \"xxxxxxxxxxxxxxxxxxxx\" (indent 9000000 \"a\") }}",
            "makes values of",
        ),
        (
            "{{ range loop 999 }}{{ scratch.MapSet \"m\" \"k\" (scratch.MapValues \"m\") }}{{ end }}",
            "nests values more than",
        ),
        (
            "{{ regexMatch \"(((a{1000}){1000}){1000})\" \"a\" }}",
            "is too large a regular expression",
        ),
        ("{{ printf \"%999999999d\" 1 | len }}{{ fail }}", "there is no function"),
    ] {
        let error = fails(text);
        assert!(error.contains(said), "{text:?}: {error}");
    }
    let (open, close) = ("(".repeat(5_000), ")".repeat(5_000));
    assert!(fails(&format!("{{{{ {open}1{close} }}}}")).contains("nests more than"));
    let deep = "{{ if true }}".repeat(5_000);
    assert!(fails(&deep).contains("nests more than"));
    for kind in ["JSON", "YAML"] {
        let deep = "[".repeat(500);
        fails(&format!("{{{{ parse{kind} \"{deep}\" }}}}"));
    }
}

/// Like [`Task`], and nobody waits any more after it was asked so often.
struct Hurried(Cell<u32>);

impl Outside for Hurried {
    fn now(&self) -> SystemTime {
        Task.now()
    }

    fn variable(&self, name: &str) -> Option<String> {
        Task.variable(name)
    }

    fn ask(&self, what: &Dependency) -> OutsideAnswer {
        Task.ask(what)
    }

    fn is_given_up(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn what_nobody_waits_for_is_rendered_no_further() {
    let text = "{{ range loop 999999 }}{{ . }}{{ end }}";
    let template = Template::parse("t", text, &Delimiters::default()).unwrap();
    let error = template.render(&Hurried(Cell::new(100)), Options::default()).unwrap_err();
    assert_eq!(error.problem, TemplateProblem::GivenUp);
}

#[test]
fn compiling_and_searching_patterns_counts_as_work() {
    // A new pattern at each turn.
    let compiles =
        "{{ range $i := loop 999 }}{{ regexMatch (printf \"\\\\p{L}{20}%d\" $i) \"a\" }}{{ end }}";
    assert!(fails(compiles).contains("makes values of more than"));
    // The same one costs once.
    let same = "{{ range loop 999 }}{{ regexReplaceAll \"[a-z]+\" \"x\" \"ab\" }}{{ end }}";
    assert_eq!(render(same, Options::default()).unwrap().output.len(), 999);
}

#[test]
fn going_through_long_texts_takes_steps() {
    let text = "{{ $x := indent 1000000 \"a\" }}{{ range loop 9999 }}{{ sha256Hex $x }}{{ end }}";
    let options = Options { steps_max: 5_000, ..Options::default() };
    assert!(render(text, options).unwrap_err().contains("takes more than"));
}

#[test]
fn a_render_tells_what_it_used_and_what_was_not_there() {
    let rendered = render(
        "{{ file \"there\" }}{{ with nomadVar \"a/b\" }}{{ .x }}{{ end }}",
        Options::default(),
    );
    let rendered = rendered.unwrap();
    assert_eq!(rendered.output, b"text");
    let variable = Dependency::Variable { path: "a/b".to_owned(), required: true };
    assert_eq!(rendered.missing.iter().collect::<Vec<_>>(), [&variable]);
    assert!(rendered.used.contains(&Dependency::File("there".to_owned())));
    assert_eq!(variable.to_string(), "nomad.var(a/b)");
}

#[test]
fn other_delimiters_leave_the_usual_ones_alone() {
    let parsed =
        Template::parse("t", "{{ x }} [[ env \"A\" -]]  [[- 1 ]]", &Delimiters::new("[[", "]]"));
    let rendered = parsed.unwrap().render(&Task, Options::default()).unwrap();
    assert_eq!(rendered.output, b"{{ x }} a1");
}

#[test]
fn every_function_takes_any_arguments_without_a_panic() {
    let values = ["", "nil", "1", "-1", "2.5", "\"a\"", "true", "(split \",\" \"a,b\")", ".x"];
    let names: Vec<_> = ostler_template::functions::names().collect();
    assert!(names.len() > 70, "{}", names.len());
    for name in names {
        for a in values {
            for b in values {
                for c in values {
                    let text = format!("{{{{ {name} {a} {b} {c} }}}}");
                    let options = Options { work_bytes_max: 10_000, ..Options::default() };
                    let _any = render(&text, options);
                }
            }
        }
    }
}

/// Pieces that templates are made of.
const PIECES: &[&str] = &[
    "{{",
    "}}",
    "{{-",
    "-}}",
    " ",
    "\n",
    "if",
    "else",
    "end",
    "range",
    "with",
    "define",
    "template",
    "block",
    "break",
    "continue",
    "$",
    "$x",
    ":=",
    "=",
    ",",
    "|",
    "(",
    ")",
    ".",
    ".a",
    "\"a\"",
    "`b`",
    "'c'",
    "1",
    "2.5",
    "true",
    "nil",
    "text",
    "/*",
    "*/",
    "eq",
    "index",
    "printf",
    "\"%v\"",
    "loop",
    "split",
    "parseJSON",
    "`[1,{\"a\":null}]`",
    "scratch.Set",
    "toYAML",
    "toTOML",
    "and",
    "é",
    "\\",
    "{{ end }}",
    "{{ range loop 9 }}",
    "{{ if 1 }}",
    "{{ $x := 1 }}",
    "{{ $x }}",
    "{{ . }}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn pieces_of_templates_are_rendered_or_refused(
        pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..40)
    ) {
        let options = Options {
            output_bytes_max: 1_000, steps_max: 2_000, work_bytes_max: 20_000, ..Options::default()
        };
        for separator in ["", " "] {
            if let Ok(rendered) = render(&pieces.join(separator), options) {
                prop_assert!(rendered.output.len() <= 1_000);
            }
        }
    }

    #[test]
    fn text_without_actions_is_itself(text in "[^{]{0,200}") {
        let rendered = render(&text, Options::default()).unwrap();
        prop_assert_eq!(rendered.output, text.into_bytes());
    }
}
