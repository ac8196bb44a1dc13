//! Variables from everywhere, loops, `dynamic` blocks and texts with directives.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::super::{Inputs, ParsedJob, read_with};
use super::check;
use super::{good, in_group, in_task, task};

fn config(body: &str) -> Json {
    Json::Object(task(&format!("config {{\n{body}\n}}")).config.into_map())
}

/// The first of `config` with these inputs, or all problems.
fn given(declared: &str, expr: &str, inputs: &Inputs) -> Result<Json, Vec<String>> {
    let text = format!("{declared}\n{}", in_task(&format!("config {{\nv = {expr}\n}}")));
    match read_with(text.as_bytes(), Path::new("j.hcl"), None, inputs) {
        Ok(parsed) => Ok(parsed.job.groups[0].tasks[0].config.map()["v"].clone()),
        Err(found) => Err(found.iter().map(ToString::to_string).collect()),
    }
}

fn inputs(vars: &[&str], files: &[&str], env: &[(&str, &str)]) -> Inputs {
    let mut inputs = Inputs::default();
    for var in vars {
        inputs.add_var(var).unwrap();
    }
    for (index, file) in files.iter().enumerate() {
        inputs.add_file(format!("{index}.vars"), *file).unwrap();
    }
    inputs.add_env(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    inputs
}

#[test]
fn the_later_source_of_a_variable_goes_before_the_earlier_one() {
    let declared = "variable \"v\" { default = \"default\" }";
    let env = [("NOMAD_VAR_v", "env"), ("NOMAD_VAR_other", "x"), ("PATH", "/bin")];
    for (inputs, expected) in [
        (inputs(&[], &[], &[]), "default"),
        (inputs(&[], &[], &env), "env"),
        (inputs(&[], &["v = \"file\""], &env), "file"),
        (inputs(&[], &["v = \"file\"", "v = \"later\""], &env), "later"),
        (inputs(&["v=a", "v=b=c"], &["v = \"file\""], &env), "b=c"),
    ] {
        assert_eq!(given(declared, "var.v", &inputs).unwrap(), expected);
    }
}

#[test]
fn values_from_outside_become_what_their_variable_is() {
    for (kind, text, expected) in [
        ("string", "5", json!("5")),
        ("string", "${x}", json!("${x}")),
        ("number", "5", json!(5)),
        ("bool", "true", json!(true)),
        ("list(string)", "[\"a\", 1]", json!(["a", "1"])),
        ("set(number)", "[2, \"1\", 2]", json!([1, 2])),
        ("map(string)", "{ a = 1 }", json!({"a": "1"})),
        (
            "object({ a = number, b = list(bool) })",
            "{ a = \"1\", b = [\"true\"] }",
            json!({"a": 1, "b": [true]}),
        ),
        ("tuple([string, number])", "[1, \"2\"]", json!(["1", 2])),
        ("any", "[1]", json!([1])),
    ] {
        let declared = format!("variable \"v\" {{ type = {kind} }}");
        let by_var = given(&declared, "var.v", &inputs(&[&format!("v={text}")], &[], &[]));
        assert_eq!(by_var.unwrap(), expected, "{kind}");
        let by_env = given(&declared, "var.v", &inputs(&[], &[], &[("NOMAD_VAR_v", text)]));
        assert_eq!(by_env.unwrap(), expected, "{kind}");
    }
    // Without a type it is that of the default; without both, a text.
    let number = given("variable \"v\" { default = 1 }", "var.v", &inputs(&["v=2"], &[], &[]));
    assert_eq!(number.unwrap(), 2);
    let text = given("variable \"v\" {}", "var.v", &inputs(&["v=[2]"], &[], &[]));
    assert_eq!(text.unwrap(), "[2]");
    let list = "variable \"v\" { default = [\"a\"] }";
    let longer = given(list, "var.v", &inputs(&["v=[1, \"x\"]"], &[], &[]));
    assert_eq!(longer.unwrap(), json!([1, "x"]));
    let other = given(list, "var.v", &inputs(&["v={}"], &[], &[])).unwrap_err();
    assert!(other[0].ends_with("a list is needed here, not an object"), "{other:?}");
    let short = given(
        "variables {\n v = 1\n w = \"x\"\n}",
        "\"${var.v}${var.w}\"",
        &inputs(&["v=2"], &[], &[]),
    );
    assert_eq!(short.unwrap(), "2x");
}

#[test]
fn files_of_variables_are_hcl_or_json() {
    let declared = "variable \"v\" { type = map(list(number)) }";
    let hcl = "# values\nv = {\n a = [1, \"2\"]\n}\n";
    let json_file = "{\"v\": {\"a\": [1, \"2\"]}}";
    for file in [hcl, json_file] {
        assert_eq!(
            given(declared, "var.v", &inputs(&[], &[file], &[])).unwrap(),
            json!({"a": [1, 2]})
        );
    }
    // A text of JSON is nothing else.
    let text =
        given("variable \"v\" {}", "var.v", &inputs(&[], &["{\"v\": \"${1 + 1} %{x}\"}"], &[]));
    assert_eq!(text.unwrap(), "${1 + 1} %{x}");
}

#[test]
fn what_is_wrong_with_a_value_from_outside_names_it_and_where_it_comes_from() {
    let declared = "\nvariable \"v\" {\n type = list(number)\n default = []\n}";
    for (given_inputs, expected) in [
        (
            inputs(&["w=1"], &[], &[]),
            "j.hcl:1:1: -var gives \"w\" a value, and the file has no variable of that name",
        ),
        (
            inputs(&["v=[x"], &[], &[]),
            "j.hcl:2:10: the value of \"v\" from -var: this [ is never closed",
        ),
        (
            inputs(&["v=[x]"], &[], &[]),
            "j.hcl:2:10: the value of \"v\" from -var: a name without meaning here; a text needs quotes",
        ),
        (
            inputs(&["v=[attr.x]"], &[], &[]),
            "a value from outside of the file can refer to nothing",
        ),
        (inputs(&["v=[var.v]"], &[], &[]), "a value from outside of the file can refer to nothing"),
        (
            inputs(&["v=[\"q${r}\"]"], &[], &[]),
            "a value from outside of the file can refer to nothing; write $${ for a literal ${",
        ),
        (
            inputs(&["v=[\"q${r:-2}\"]"], &[], &[]),
            "\"${r:-2}\" is not an expression; write $${ for a literal ${, as a shell has it",
        ),
        (
            inputs(&[], &["\nv = [\"${r:-2}\"]"], &[]),
            "\"${r:-2}\" is not an expression; write $${ for a literal ${, as a shell has it",
        ),
        (
            inputs(&["v=[\"a\"]"], &[], &[]),
            "the value of \"v\" from -var: a number is needed here, not \"a\"",
        ),
        (
            inputs(&[], &[], &[("NOMAD_VAR_v", "{}")]),
            "the value of \"v\" from the environment: a list is needed here, not an object",
        ),
        (
            inputs(&[], &["\nv = 5"], &[]),
            "the value of \"v\" from a file of variables: a list is needed here, not 5",
        ),
        (inputs(&[], &["\nv = [nope]"], &[]), "j.hcl:1:1: 0.vars:2:5: a name without meaning here"),
        (
            inputs(&[], &["\nvariable \"v\" {}"], &[]),
            "j.hcl:1:1: 0.vars:2:1: a file of variables may only hold name = value",
        ),
        (inputs(&[], &["\n v = = 2"], &[]), "j.hcl:1:1: 0.vars:2:6: cannot be read"),
        (inputs(&[], &["{\"v\": [1,}"], &[]), "j.hcl:1:1: 0.vars:1:10: a value is expected here"),
    ] {
        let found = given(declared, "var.v", &given_inputs).unwrap_err();
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}\n{found:?}");
    }
    assert!(Inputs::default().add_var("novalue").is_err());
    assert!(Inputs::default().add_file("x", "x".repeat(3 * 1024 * 1024)).is_err());
}

#[test]
fn a_file_may_have_values_for_other_job_files_and_says_so() {
    let text = in_task("");
    let inputs = inputs(&[], &["other = 1"], &[("NOMAD_VAR_third", "x")]);
    let ParsedJob { warnings, .. } =
        read_with(text.as_bytes(), Path::new("j.hcl"), None, &inputs).unwrap();
    let warnings: Vec<String> = warnings.iter().map(|w| w.message.clone()).collect();
    assert_eq!(
        warnings,
        ["0.vars gives \"other\" a value, and the job file has no variable of that name"]
    );
}

#[test]
fn a_rule_is_asked_of_the_value_that_counts() {
    let declared = "variable \"v\" {\n type = number\n default = 1\n validation {\n condition = var.v < 10 && contains([1, 5, 7], var.v)\n error_message = \"Only 1, 5 or 7.\"\n }\n}";
    assert_eq!(given(declared, "var.v + 1", &inputs(&["v=5"], &[], &[])).unwrap(), 6);
    let found = given(declared, "var.v", &inputs(&["v=6"], &[], &[])).unwrap_err();
    assert_eq!(found, ["j.hcl:1:10: the value of \"v\" is not valid: Only 1, 5 or 7"]);
}

#[test]
fn dynamic_blocks_become_one_block_for_each_element() {
    let job = good(
        r#"
locals {
  ports = { web = 80, admin = 8080 }
  tasks = [{ name = "a", args = ["x"] }, { name = "b", args = ["y", "z"] }]
}
job "j" {
  dynamic "constraint" {
    for_each = ["a", "b"]
    iterator = c
    content {
      attribute = "${meta.x}"
      value     = "${c.key}-${c.value}"
    }
  }
  group "g" {
    network {
      dynamic "port" {
        for_each = local.ports
        labels   = [port.key]
        content {
          static = port.value
        }
      }
    }
    dynamic "task" {
      for_each = local.tasks
      labels   = ["t-${task.value.name}"]
      content {
        driver = "mock"
        config {
          args = [for a in task.value.args : upper(a)]
          dynamic "mount" {
            for_each = task.value.args
            content {
              source = "${task.value.name}/${mount.value}"
            }
          }
        }
        env { N = task.key }
      }
    }
    dynamic "service" {
      for_each = []
      content {}
    }
  }
}
"#,
    );
    let rights: Vec<_> = job.constraints.iter().map(|c| c.right.as_str()).collect();
    assert_eq!(rights, ["0-a", "1-b"]);
    let group = &job.groups[0];
    let ports: Vec<_> =
        group.network.as_ref().unwrap().ports.iter().map(|p| (p.label.as_str(), p.fixed)).collect();
    assert_eq!(ports, [("admin", Some(8080)), ("web", Some(80))]);
    let [a, b] = group.tasks.as_slice() else { panic!("two tasks") };
    assert_eq!((a.name.as_str(), a.env["N"].as_str()), ("t-a", "0"));
    assert_eq!((b.name.as_str(), b.env["N"].as_str()), ("t-b", "1"));
    assert_eq!(
        Json::Object(b.config.map().clone()),
        json!({"args": ["Y", "Z"], "mount": [{"source": "b/y"}, {"source": "b/z"}]})
    );
}

#[test]
fn what_is_wrong_with_a_dynamic_block_is_told_once() {
    for (body, expected) in [
        ("dynamic \"constraint\" {}", "4:1: a dynamic block needs for_each"),
        ("dynamic {\nfor_each = []\ncontent {}\n}", "4:1: dynamic takes the name of the blocks"),
        (
            "dynamic \"task\" {\nfor_each = 1\ncontent {}\n}",
            "5:12: a list, a set or an object is needed here, not a number",
        ),
        (
            "dynamic \"task\" {\nfor_each = null\ncontent {}\n}",
            "5:12: a list, a set or an object is needed here, not null",
        ),
        (
            "dynamic \"task\" {\nfor_each = [1, 2, 3]\nlabels = [\"x\"]\ncontent {\ndriver = nope\n}\n}",
            "8:10: a name without meaning here",
        ),
        (
            "dynamic \"task\" {\nfor_each = [1]\niterator = \"x\"\ncontent {}\n}",
            "6:12: iterator must be a name without quotes",
        ),
        (
            "dynamic \"task\" {\nfor_each = [1]\ncontent {}\ncontent {}\n}",
            "7:1: a dynamic block has one content",
        ),
        (
            "dynamic \"task\" {\nfor_each = []\ncontnt {}\ncontent {}\n}",
            "6:1: \"contnt\" is unknown in a dynamic block (did you mean content?)",
        ),
        (
            "dynamic \"tsk\" {\nfor_each = [1]\ncontent {}\n}",
            "4:9: \"tsk\" is unknown in a group (did you mean task?)",
        ),
    ] {
        check(&in_group(body), &[expected]);
    }
}

#[test]
fn a_loop_hides_what_has_its_name_outside_and_nothing_of_it_is_left() {
    let job = config(
        "a = [for var in [1] : var]\nb = [for x in [[1, 2], [3]] : [for x in x : x * 10]]\nc = \"${x}\"",
    );
    assert_eq!(job, json!({"a": [1], "b": [[10, 20], [30]], "c": "${x}"}));
    // A local does not see the names of the loop around its use.
    let text = format!(
        "locals {{\n l = \"${{x}}\"\n}}\n{}",
        in_task("config {\na = [for x in [1] : local.l]\n}")
    );
    assert_eq!(good(&text).groups[0].tasks[0].config.map()["a"], json!(["${x}"]));
}

#[test]
fn directives_and_blanks_of_texts_are_as_in_hcl() {
    for (text, expected) in [
        (
            "<<EOT\n%{ for i, x in [\"a\", \"b\"] ~}\n  ${i}: ${x}\n%{ endfor ~}\nend\nEOT",
            "  0: a\n  1: b\nend\n",
        ),
        (
            "<<-EOT\n    one\n      two %{ if true }yes%{ else }no%{ endif }\n    three\n    EOT",
            "one\n  two yes\nthree\n",
        ),
        (
            "<<-EOT\n  x\n   %{ if true }\n      y\n    z\n  %{ endif }\n  w\n  EOT",
            "x\n \n    y\n  z\n\nw\n",
        ),
        ("<<EOT\n%{ if true ~}\nyes\n%{~ else ~}\nno\n%{ endif ~}\nend\nEOT", "yesend\n"),
        ("<<EOT\n  a\n\n  ${~ \"y\" ~}\n\n  b\nEOT", "  a\n\ny\n  b\n"),
        (r#""x\n  ${~ "y" ~}  \n z""#, "xyz"),
        (r#""%{ for k, v in {a=1,b=2} ~} ${k}=${v} %{~ endfor }""#, "a=1b=2"),
        (r#""%%{ if } ${"x" }""#, "%{ if } x"),
    ] {
        assert_eq!(config(&format!("v = {text}"))["v"], expected, "{text}");
    }
}

#[test]
fn paths_go_through_lists_and_objects() {
    let declared =
        "variable \"v\" { default = [{ k = \"a\", l = [1, 2] }, { k = \"b\", l = [3] }] }";
    for (expr, expected) in [
        ("var.v[*].k", json!(["a", "b"])),
        ("var.v.*.k", json!(["a", "b"])),
        ("var.v[*][\"k\"]", json!(["a", "b"])),
        ("var.v[*].l[0]", json!([1, 3])),
        ("var.v.*.l[0]", json!([1, 2])),
        ("var.v[*].l[*]", json!([[1, 2], [3]])),
        ("var.v[length(var.v) - 1].k", json!("b")),
        ("var[\"v\"].1.l.0", json!(3)),
        ("var.v[0].k[*]", json!(["a"])),
    ] {
        assert_eq!(given(declared, expr, &Inputs::default()).unwrap(), expected, "{expr}");
    }
    for (expr, expected) in [
        ("var.v.k", "a list has no member \"k\""),
        ("var.v[2]", "there is no such element; the list has 2"),
        ("var.v[-1]", "there is no such element"),
        ("var.v[0].kk", "there is no member \"kk\""),
        ("var.v[*].x", "there is no member \"x\""),
        ("var", "write var.name or local.name"),
    ] {
        let found = given(declared, expr, &Inputs::default()).unwrap_err();
        assert!(found.len() == 1 && found[0].contains(expected), "{expr}: {found:?}");
    }
}

#[test]
fn null_in_a_config_means_not_given() {
    assert_eq!(config("a = null\nb = { c = null }"), json!({"b": {"c": null}}));
}

#[test]
fn what_is_wrong_where_only_the_other_side_counts_is_no_matter_and_elsewhere_it_is() {
    let text = format!(
        "locals {{\n bad = [1][7]\n safe = try(local.bad, \"none\")\n}}\n{}",
        in_task("config {\na = local.safe\n}")
    );
    // What a local is wrong about is told even if each use of it copes with that.
    check(&text, &["2:8: there is no such element; the list has 1"]);
    let value = config(
        "a = try([1][7], 2)\nb = can(nope)\nc = true ? 1 : [1][7]\nd = false ? {}.x : \"y\"",
    );
    assert_eq!(value, json!({"a": 2, "b": false, "c": 1, "d": "y"}));
}
