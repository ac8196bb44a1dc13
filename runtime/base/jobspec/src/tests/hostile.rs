//! Input nobody writes by hand: sizes, nesting, expansion, random bytes.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::super::{JobFileError, Syntax, parse, parse_file};
use super::{check_places, good, in_task, problems};
use crate::{Inputs, read_with};
use ostler_model::cancellation::CancelFlag;
use ostler_model::limits::{JOB_DIAGNOSTICS_MAX, JOB_FILE_BYTES_MAX, JOB_RULES_MAX};

/// On a stack as small as those of the agent's threads.
fn on_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(1024 * 1024).spawn(test).unwrap().join().unwrap();
}

fn config(value: &str) -> String {
    in_task(&format!("config {{\na = {value}\n}}"))
}

#[test]
fn deep_nesting_is_refused_before_it_is_parsed() {
    on_small_stack(|| {
        let n = 100_000;
        for text in [
            "a {\n".repeat(n),
            config(&"[".repeat(n)),
            config(&"(".repeat(n)),
            config(&"{a=".repeat(n)),
            config(&"\"${".repeat(n)),
            config(&format!("{}1{}", "f(".repeat(n), ")".repeat(n))),
            "[".repeat(n),
            "{\"a\":".repeat(n),
        ] {
            let found = problems(&text);
            assert_eq!(found.len(), 1);
            assert!(found[0].contains("nested too deeply"), "{found:?}");
        }
    });
}

#[test]
fn long_expressions_without_brackets_do_not_overflow_the_stack() {
    on_small_stack(|| {
        for text in [
            config(&format!("{}1", "-".repeat(100_000))),
            config(&format!("{}true", "!".repeat(100_000))),
            config(&format!("{}1", "1+".repeat(100_000))),
            config(&format!("{}1", "true?1:".repeat(900))),
            config(&format!("{}1{}", "true?".repeat(900), ":1".repeat(900))),
            config(&format!("a{}", "[0]".repeat(10_000))),
        ] {
            assert_eq!(problems(&text).len(), 1);
        }
    });
}

#[test]
fn a_path_of_too_many_steps_is_refused_before_it_is_walked() {
    on_small_stack(|| {
        for step in [".*", "[*]", "[0]", ".a"] {
            let text = config(&format!("[1]{}", step.repeat(5_000)));
            let found = problems(&text);
            assert!(found[0].contains("too many steps; a path has at most"), "{step}: {found:?}");
        }
        let text = format!("locals {{\nl = [1]{}\n}}\n{}", ".*".repeat(5_000), config("local.l"));
        assert!(problems(&text)[0].contains("too many steps"));
    });
}

#[test]
fn the_deepest_nesting_allowed_is_read() {
    on_small_stack(|| {
        // Job, group, task and config are four levels.
        let text = config(&format!("{}1{}", "[".repeat(28), "]".repeat(28)));
        assert!(parse(text.as_bytes(), Path::new("x"), None).is_ok());
        let text = config(&format!("{}1{}", "[".repeat(29), "]".repeat(29)));
        assert!(problems(&text)[0].contains("nested too deeply"));
    });
}

#[test]
fn locals_that_double_each_other_are_stopped() {
    for (first, step) in [
        ("\"xxxxxxxx\"", "\"${local.aI}${local.aI}\""),
        ("[1]", "[local.aI, local.aI]"),
        ("[1]", "concat(local.aI, local.aI)"),
        ("\"\\\"\"", "jsonencode(local.aI)"),
    ] {
        let mut text = format!("locals {{\na00 = {first}\n");
        for i in 1..60 {
            let step = step.replace('I', &format!("{:02}", i - 1));
            text.push_str(&format!("a{i:02} = {step}\n"));
        }
        text.push_str("}\n");
        text.push_str(&config("local.a59"));
        let found = problems(&text);
        assert!(found.iter().any(|p| p.contains("produce too much")), "{found:?}");
    }
}

#[test]
fn loops_and_functions_that_would_produce_too_much_are_stopped() {
    let many = "range(1024)";
    let nested =
        format!("[for a in {many} : [for b in {many} : [for c in {many} : \"xxxxxxxxxx\"]]]");
    let list = "range(1000)";
    let product = format!("setproduct({list}, {list}, {list}, {list})");
    let wide: String = (0..2_000).map(|_| "%10000s").collect();
    let values: String = (0..2_000).map(|_| ", 1").collect();
    let aliases: String =
        (1..40).map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}]\\n", i - 1)).collect();
    for value in [
        nested,
        format!(
            "join(\"\", [for a in {many} : join(\"\", [for b in {many} : \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"])])"
        ),
        product,
        format!("format(\"{wide}\"{values})"),
        format!("yamldecode(\"a0: &a0 [1]\\n{aliases}\")"),
        format!("[for a in {many} : replace(join(\"\", {many}), \"1\", join(\"\", {many}))]"),
        format!("[for a in {many} : bcrypt(\"x\", 4)]"),
        "indent(1000000000000000, \"a\")".to_owned(),
        format!("split(\"\", join(\"\", [for a in {many} : join(\"\", {many})]))"),
        format!(
            "regex_replace(join(\"\", {many}), \".*\", join(\"\", [for a in {many} : \"$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0\"]))"
        ),
        format!("[for a in {many} : indent(100000, \"a\\nb\")]"),
        format!(
            "\"%{{ for a in {many} }}%{{ for b in {many} }}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx%{{ endfor }}%{{ endfor }}\""
        ),
        format!("[for a in {many} : try([for b in {many} : [for c in {many} : c]], 1)]"),
        format!("[for a in {many} : true ? 1 : [for b in {many} : [for c in {many} : c]]]"),
    ] {
        let found = problems(&config(&value));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("produce too much"), "{found:?}");
    }
    let blocks = in_task(&format!(
        "dynamic \"constraint\" {{\nfor_each = {many}\ncontent {{\nattribute = attr.x\nvalue = 1\ndynamic \"x\" {{\nfor_each = {many}\ncontent {{}}\n}}\n}}\n}}"
    ));
    let found = problems(&blocks);
    assert!(found.iter().any(|p| p.contains("produce too much")), "{found:?}");
}

#[test]
fn what_dynamic_blocks_repeat_counts_with_its_names() {
    let long = "a".repeat(100_000);
    let over = |name: &str, content: &str| {
        format!(
            "dynamic \"{name}\" {{\nfor_each = range(1000)\nlabels = [\"g\"]\ncontent {{\n{content}\n}}\n}}"
        )
    };
    for inner in [
        // Names of blocks, labels and attributes that stand in the file once.
        over("task", &format!("template \"{long}\" {{}}")),
        over("task", &format!("{long} {{}}")),
        over("task", &format!("{long} = 1")),
        over(&long, "a = 1"),
        over("task", &over("template", "")),
    ] {
        let found = problems(&format!("job \"x\" {{\n{}\n}}", over("group", &inner)));
        assert!(found.iter().any(|p| p.contains("produce too much")), "{:?}", found.first());
    }
    let thousand = "dynamic \"constraint\" {\nfor_each = range(500)\ncontent {\nattribute = \"${attr.x}\"\nvalue = \
                    \"${constraint.value}\"\n}\n}";
    good(&in_task(thousand));
}

#[test]
fn compiling_patterns_counts_and_a_pattern_is_compiled_once() {
    let each = "regex_replace(\"a\", \"\\\\p{L}{20}${i}x${j}\", \"\")";
    let attack = format!("jsonencode([for j in range(1000) : [for i in range(1000) : {each}]])");
    let written_out: String = (0..9_999)
        .map(|i| format!("regex_replace(\"a\", \"\\\\p{{L}}{{20}}{i}\", \"\"), "))
        .collect();
    for value in [attack, format!("[{written_out}]")] {
        let found = problems(&config(&value));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("produce too much"), "{found:?}");
    }
    let same = config("[for i in range(1000) : regex_replace(\"a-${i}\", \"[a-z]+-\", \"\")]");
    good(&same);
    let searched = config(
        "[for i in range(1000) : regex_replace(join(\"\", range(1000)), \"\\\\w{4}x\", \"\")]",
    );
    assert!(problems(&searched)[0].contains("produce too much"));
}

#[test]
fn nothing_is_evaluated_for_somebody_who_has_gone() {
    let (waiter, wanted) = CancelFlag::new_pair();
    let inputs = Inputs { wanted, ..Inputs::default() };
    let read = || read_with(config("upper(\"a\")").as_bytes(), Path::new(""), None, &inputs);
    assert!(read().is_ok());
    drop(waiter);
    let said = read().unwrap_err().to_string();
    assert!(said.contains("reading this file was cancelled"), "{said}");
}

#[test]
fn what_a_job_compares_is_bounded_in_number_length_and_patterns() {
    let rule = |more: &str| format!("constraint {{\nattribute = attr.kernel.name\n{more}\n}}\n");
    let many = in_task(&rule("value = \"linux\"").repeat(JOB_RULES_MAX + 5));
    let found = problems(&many);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("at most 1000 constraints and affinities"), "{found:?}");
    let found = problems(&in_task(&rule(&format!("value = \"{}\"", "x".repeat(4_097)))));
    assert!(found[0].contains("a side of a comparison has at most 4096"), "{found:?}");
    let found = problems(&in_task(&rule("regexp = \"\\\\p{L}{500}N\"")));
    assert!(found[0].contains("is too large a regular expression"), "{found:?}");
    let dear: String =
        (0..999).map(|i| rule(&format!("regexp = \"\\\\p{{L}}{{5}}{i}\""))).collect();
    let found = problems(&in_task(&dear));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("the regular expressions of this job have"), "{found:?}");
    let usual: String =
        (0..200).map(|i| rule(&format!("regexp = \"^r[0-9]{{1,3}}-{i}$\""))).collect();
    good(&in_task(&usual));
}

#[test]
fn hostile_arguments_are_refused_at_once() {
    for (value, expected) in [
        ("range(1000000000)", "at most 1024"),
        ("range(0, 1e300, 1e-300)", "at most 1024"),
        ("format(\"%999999999d\", 1)", "at most 10000"),
        ("format(\"%.99999999999999999999f\", 1)", "at most 10000"),
        ("bcrypt(\"x\", 31)", "a cost of 4 to 12"),
        ("regex_replace(\"x\", \"(a{1000}){1000}\", \"\")", "too large a regular expression"),
        ("pow(10, 1000)", "no result"),
        ("parseint(\"ffffffffffffffffffffffff\", 16)", "too large"),
        ("indent(-1, \"x\")", "of at least 0"),
        ("cidrsubnet(\"10.0.0.0/8\", 9999999999, 1)", "0 to 32 bits"),
        ("formatdate(\"YYYYYYYYYYYYYYYYYYYY\", \"2018-01-02T23:12:01Z\")", "not a part of a time"),
        ("timeadd(\"9999-12-31T23:59:59Z\", \"99999h\")", "no such time"),
        ("yamldecode(\"&a [*a]\")", "YAML"),
        ("csvdecode(\"a,a\\n1,2\")", "two columns"),
        ("jsondecode(\"[[[[\")", "not JSON"),
        ("substr(\"abc\", -9223372036854775808, 1)", ""),
    ] {
        if expected.is_empty() {
            assert!(parse(config(value).as_bytes(), Path::new("x"), None).is_ok(), "{value}");
            continue;
        }
        let found = problems(&config(value));
        assert!(found.len() == 1 && found[0].contains(expected), "{value}: {found:?}");
    }
    let deep = "[".repeat(200) + &"]".repeat(200);
    for value in [
        format!("jsondecode(\"{deep}\")"),
        format!("yamldecode(\"{deep}\")"),
        format!("yamldecode(\"{}\")", "- ".repeat(10_000)),
    ] {
        let found = problems(&config(&value));
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

#[test]
fn a_long_chain_of_locals_is_read_and_one_of_lists_in_lists_is_refused() {
    on_small_stack(|| {
        for (wrap, refused) in [("local.aI", false), ("[[[[[[[[local.aI]]]]]]]]", true)] {
            let chain: Vec<String> = (1..900)
                .map(|i| format!("a{i:04} = {}", wrap.replace('I', &format!("{:04}", i - 1))))
                .collect();
            // The other way round each needs the next, which is not known yet.
            let reversed: Vec<String> = chain.iter().rev().cloned().collect();
            for lines in [chain, reversed] {
                let locals = format!("locals {{\na0000 = 1\n{}\n}}\n", lines.join("\n"));
                let text = locals + &config("local.a0899");
                let found = parse(text.as_bytes(), Path::new("x"), None);
                assert_eq!(found.is_err(), refused, "{found:?}");
            }
        }
    });
}

#[test]
fn many_problems_are_cut() {
    let found = problems(&in_task(&"x {}\n".repeat(1_000)));
    assert_eq!(found.len(), JOB_DIAGNOSTICS_MAX);
}

#[test]
fn too_many_members_of_an_object_are_refused() {
    let members: String = (0..1_001).map(|i| format!("k{i} = 1\n")).collect();
    let found = problems(&config(&format!("{{\n{members}}}")));
    assert!(found[0].contains("members between two brackets"), "{found:?}");
}

#[test]
fn wrong_files_are_named_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        path(name)
    };
    let huge = vec![b'#'; usize::try_from(JOB_FILE_BYTES_MAX).unwrap() + 1];
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    type Check = fn(&JobFileError) -> bool;
    let cases: [(std::path::PathBuf, Check); 9] = [
        (path("absent"), |e| matches!(e, JobFileError::Missing { .. })),
        (path(""), |e| matches!(e, JobFileError::NotAFile { what: "directory", .. })),
        (path("fifo"), |e| matches!(e, JobFileError::NotAFile { what: "pipe", .. })),
        ("/dev/null".into(), |e| matches!(e, JobFileError::NotAFile { what: "device", .. })),
        (write("huge", &huge), |e| matches!(e, JobFileError::TooLarge { .. })),
        (write("empty", b" \n"), |e| matches!(e, JobFileError::Empty { .. })),
        (write("nul", b"job\0"), |e| matches!(e, JobFileError::Binary { offset: 3, .. })),
        (write("latin", b"job \"\xe9\""), |e| matches!(e, JobFileError::Binary { offset: 5, .. })),
        (write("bad.hcl", b"jb {}"), |e| matches!(e, JobFileError::Invalid { .. })),
    ];
    for (path, expected) in cases {
        let error = parse_file(&path).unwrap_err();
        assert!(expected(&error), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && !text.ends_with('.'), "{text}");
    }
    let file = write("ok.hcl", in_task("env = { DIR = \"${job.dir}\" }").as_bytes());
    assert_eq!(parse_file(&file).unwrap().source_dir.unwrap(), dir.path());
}

#[test]
fn bytes_that_are_no_text_have_a_place() {
    let found = parse(b"job \"a\" {\n \xff", Path::new("x"), None).unwrap_err();
    assert_eq!((found.diagnostics[0].line, found.diagnostics[0].column), (2, 2));
    let huge = vec![b' '; usize::try_from(JOB_FILE_BYTES_MAX).unwrap() + 1];
    let found = parse(&huge, Path::new("x"), None).unwrap_err();
    assert!(found.diagnostics[0].message.contains("at most"));
}

/// Something of everything, as material to damage.
const SEED_HCL: &str = r#"variable "v" { default = [1, "a"] }
locals { l = "${join(",", var.v)}-${1 + 2 * 3}" }
job "j" {
  type = "batch"
  meta = { a = local.l, "b" = true ? 1 : 2 }
  group "g" {
    restart { delay = "1s" }
    network {
      port "p" { static = 80 }
    }
    task "t" {
      driver = "exec"
      config {
        args = ["-c", <<-EOT
          echo ${NOMAD_PORT_p} $${HOME}
          EOT
        ]
        m { x = null }
        m { x = -1.5e3 }
      }
      resources {
        device "a/b/c" { count = 2 }
      }
      lifecycle { hook = "prestart" }
    }
    task "u" { driver = "mock" }
  }
}
"#;

const SEED_JSON: &str = r#"{"Job": {"ID": "j", "Type": "batch", "Update": null, "Meta": {"a": "b"},
 "TaskGroups": [{"Name": "g", "Count": 1, "RestartPolicy": {"Delay": 1000000000},
  "Networks": [{"DynamicPorts": [{"Label": "p", "Value": 0, "To": 80}], "ReservedPorts": null}],
  "Tasks": [{"Name": "t", "Driver": "exec", "Config": {"x": [1, 2.5, null, "\u00e9"]},
   "Resources": {"CPU": 100, "Devices": [{"Name": "gpu", "Count": 1}]}}]}]}, "Region": ""}"#;

fn check_any(bytes: &[u8], syntax: Option<Syntax>) {
    if let Err(found) = parse(bytes, Path::new("x"), syntax) {
        // The places are those of the text before the first byte that is none.
        match std::str::from_utf8(bytes) {
            Ok(text) => check_places(text, &found),
            Err(_) => assert!(!found.is_empty()),
        }
    }
}

#[test]
fn the_seeds_are_good() {
    assert!(parse(SEED_HCL.as_bytes(), Path::new("x"), None).is_ok());
    assert!(parse(SEED_JSON.as_bytes(), Path::new("x"), None).is_ok());
}

#[test]
fn a_file_cut_anywhere_is_refused_or_read() {
    for seed in [SEED_HCL, SEED_JSON] {
        for end in 0..seed.len() {
            check_any(&seed.as_bytes()[..end], None);
        }
    }
}

/// Replace, insert or remove pieces of a seed.
fn damaged(seed: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            "\"",
            "${",
            "$${",
            "%{",
            "<<E\n",
            "=",
            "\n",
            ",",
            "null",
            "-",
            "!",
            "?",
            "local.l",
            "var.v",
            "\\",
            "/*",
            "#",
            "é",
            "0",
            "99999999999999999999",
            "job",
            "task \"t\" {}",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    let edit = (0..seed.len(), 0_usize..6, piece);
    prop::collection::vec(edit, 1..6).prop_map(move |edits| {
        let mut bytes = seed.as_bytes().to_vec();
        for (at, remove, piece) in edits {
            let at = at.min(bytes.len());
            let end = (at + remove).min(bytes.len());
            bytes.splice(at..end, piece);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_any(&bytes, None);
        check_any(&bytes, Some(Syntax::Hcl));
        check_any(&bytes, Some(Syntax::Json));
    }

    #[test]
    fn random_text_never_panics(text in "[a-z{}\\[\\]()\"$%=,.:<>\\-!?#/*\\\\ \n0-9]{0,120}") {
        check_any(text.as_bytes(), Some(Syntax::Hcl));
        check_any(text.as_bytes(), Some(Syntax::Json));
    }

    #[test]
    fn damaged_jobs_never_panic(hcl in damaged(SEED_HCL), json in damaged(SEED_JSON)) {
        check_any(&hcl, None);
        check_any(&json, None);
    }

    #[test]
    fn durations_survive_the_way_through_a_file(seconds in 0_u32..1_000_000) {
        let text = in_task(&format!("kill_timeout = \"{seconds}s\""));
        let job = parse(text.as_bytes(), Path::new("x"), None).unwrap();
        let expected = Duration::from_secs(u64::from(seconds));
        prop_assert_eq!(job.groups[0].tasks[0].kill_timeout, expected);
    }
}
