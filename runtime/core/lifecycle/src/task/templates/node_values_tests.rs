#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{SystemTime, UNIX_EPOCH};

use ostler_model::ids::{AllocId, JobId, Namespace};
use ostler_model::rng::Rng;
use ostler_model::vars::{Secret, VarPath};
use ostler_template::{Delimiters, Dependency, Options, Outside, OutsideAnswer, Template};

use super::*;

struct Node;

fn web_variable() -> Arc<Variable> {
    let items = [("host", "db"), ("port", "5432"), ("Keys2", "<a>")];
    let items = items.map(|(name, text)| (name.to_owned(), Secret::new(text)));
    Arc::new(Variable {
        namespace: Namespace::default(),
        path: VarPath::new("nomad/jobs/web").unwrap(),
        items: items.into(),
        create_index: 7,
        modify_index: 9,
        created: Timestamp::from_nanos(1_709_211_845_123_000_000),
        modified: Timestamp::from_nanos(1_709_211_846_000_000_000),
    })
}

fn instances() -> Vec<Arc<ServiceInstance>> {
    let one = |name: &str, port: u16, tags: &[&str]| {
        Arc::new(ServiceInstance {
            id: format!("_{name}-{port}"),
            name: name.to_owned(),
            namespace: "default".to_owned(),
            job: JobId::new("j").unwrap(),
            alloc: AllocId::new(Rng::from_seed(1).uuid()),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            meta: BTreeMap::new(),
            address: "10.0.0.1".to_owned(),
            port,
            create_index: 1,
            modify_index: 1,
        })
    };
    vec![one("db", 1, &["b", "a"]), one("db", 2, &["c"]), one("web", 3, &[])]
}

impl Outside for Node {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH
    }

    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn ask(&self, what: &Dependency) -> OutsideAnswer {
        let (known, all) = (web_variable(), instances());
        let answer = match what {
            Dependency::Variable { path, .. } if path == known.path.as_str() => variable(&known),
            Dependency::Variables { prefix, .. } if prefix.starts_with("nomad") => {
                variables([known].iter())
            }
            Dependency::Service { name, .. } => {
                let such: Vec<_> = all.into_iter().filter(|of| of.name == *name).collect();
                service(such.iter(), "node-1", "dc1")
            }
            Dependency::Services => services(all.iter()),
            _ => return OutsideAnswer::Missing,
        };
        OutsideAnswer::Is(answer.unwrap())
    }
}

fn rendered(text: &str) -> Result<String, String> {
    let template = Template::parse("t", text, &Delimiters::default());
    let rendered = template.and_then(|template| template.render(&Node, Options::default()));
    let rendered = rendered.map_err(|error| error.to_string())?;
    assert!(rendered.missing.is_empty(), "{:?}", rendered.missing);
    Ok(String::from_utf8(rendered.output).unwrap())
}

#[test]
fn items_of_a_variable_are_texts_with_a_way_to_what_they_are_of() {
    const WITH: &str = "{{ with nomadVar \"nomad/jobs/web\" }}";
    for (text, shown) in [
        ("{{ .host }}:{{ .port }}", "db:5432"),
        ("{{ .host.Value }} {{ .host.Key }} {{ .host.Metadata.Path }}", "db host nomad/jobs/web"),
        ("{{ range $k, $v := . }}{{ $k }}={{ $v }};{{ end }}", "Keys2=<a>;host=db;port=5432;"),
        ("{{ range .Tuples }}{{ .K }}={{ .V }};{{ end }}", "Keys2=<a>;host=db;port=5432;"),
        ("{{ .Keys }} {{ .Values | join \",\" }}", "[Keys2 host port] <a>,db,5432"),
        ("{{ .none }}|{{ len . }}", "|3"),
        (
            "{{ index . \"host\" }} {{ .host | toUpper }} {{ printf \"%s-%v\" .host .port }}",
            "db DB db-5432",
        ),
        ("{{ if eq .host \"db\" }}same{{ end }} {{ parseInt .port | add 1 }}", "same 5433"),
        ("{{ . | toJSON }}", "{\"Keys2\":\"\\u003ca\\u003e\",\"host\":\"db\",\"port\":\"5432\"}"),
        ("{{ .ItemsMap | toYAML }}", "Keys2: <a>\nhost: db\nport: \"5432\""),
        ("{{ . | toTOML }}", "Keys2 = \"<a>\"\nhost = \"db\"\nport = \"5432\""),
        ("{{ .Metadata }} {{ .Metadata.ModifyIndex }}", "nomad/jobs/web 9"),
        ("{{ .Parent.Namespace }} {{ .Parent.Items.host }}", "default db"),
        ("{{ .Metadata.CreateTime }}", "2024-02-29 13:04:05.123 +0000 UTC"),
        ("{{ .Metadata.ModifyTime }}", "2024-02-29 13:04:06 +0000 UTC"),
    ] {
        assert_eq!(rendered(&format!("{WITH}{text}{{{{ end }}}}")), Ok(shown.to_owned()), "{text}");
    }
    let error = rendered(&format!("{WITH}{{{{ .host.Valve }}}}{{{{ end }}}}")).unwrap_err();
    assert!(error.contains("there is no field Valve; the fields are: Key,"), "{error}");
}

#[test]
fn variables_are_listed_and_asked_for_without_what_is_in_them() {
    for (text, shown) in [
        (
            "{{ range nomadVarList \"nomad\" }}{{ . }} {{ .CreateIndex }}{{ end }}",
            "nomad/jobs/web 7",
        ),
        ("{{ range nomadVarListSafe \"/nomad/\" }}{{ .Path }}{{ end }}", "nomad/jobs/web"),
        ("{{ nomadVarExists \" /nomad/jobs/web/ \" }} {{ nomadVarExists \"\" }}", "true false"),
        ("{{ with nomadVar \"\" }}x{{ else }}nothing{{ end }}", "nothing"),
    ] {
        assert_eq!(rendered(text), Ok(shown.to_owned()), "{text}");
    }
}

#[test]
fn services_have_the_fields_of_consul_templates() {
    let alloc = AllocId::new(Rng::from_seed(1).uuid());
    for (text, shown) in [
        (
            "{{ range nomadService \"db\" }}{{ .Address }}:{{ .Port }} {{ end }}",
            "10.0.0.1:1 10.0.0.1:2 ",
        ),
        (
            "{{ with index (nomadService \"web\") 0 }}{{ .ID }} {{ .Name }} {{ .Node }} {{ .Datacenter }} \
             {{ .JobID }} {{ .AllocID }}{{ end }}",
            &format!("_web-3 web node-1 dc1 j {alloc}"),
        ),
        ("{{ range nomadService \"db\" }}{{ .Tags | join \",\" }};{{ end }}", "a,b;c;"),
        (
            "{{ range $tag, $all := nomadService \"db\" | byTag }}{{ $tag }}{{ len $all }} {{ end }}",
            "a1 b1 c1 ",
        ),
        (
            "{{ range nomadServices }}{{ .Name }}({{ .Namespace }}){{ .Tags }} {{ end }}",
            "db(default)[a b c] web(default)[] ",
        ),
        (
            "{{ range nomadServices }}{{ if .Tags.Contains \"c\" }}{{ .Name }}{{ end }}{{ end }}",
            "db",
        ),
        ("{{ len (nomadService \"none\") }}", "0"),
    ] {
        assert_eq!(rendered(text), Ok(shown.to_owned()), "{text}");
    }
}
