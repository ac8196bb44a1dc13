//! What cannot be read as HCL or evaluated: said once, in the words of a job file, where it is wrong.

use super::check;
use super::{in_group, in_task};

#[test]
fn what_is_no_hcl_is_explained_where_it_is_wrong() {
    for (text, expected) in [
        (
            "job \"a\" {\n group = \"g\" {\n }\n}",
            "2:8: no = stands before the label of a block; write group \"g\" {",
        ),
        (
            "job \"a\" {\n group = \"g\" \"h\" {\n }\n}",
            "2:8: no = stands before the label of a block",
        ),
        (
            "job \"a\" {\n type \"batch\"\n}",
            "2:2: an attribute is given with =, as in type = …, and a block opens with { on this line",
        ),
        (
            "job \"a\" {\n all_at_once true # now\n}",
            "2:2: an attribute is given with =, as in all_at_once = …, and a block opens",
        ),
        ("job \"a\" {\n x [\"dc1\"]\n}", "2:2: an attribute is given with =, as in x = …"),
        ("job \"a\" {\n priority 5\n}", "2:2: an attribute is given with =, as in priority = …"),
        (
            "job \"a\" {\n group \"g\"\n {\n }\n}",
            "2:2: the { that opens a block stands on the line of its name; move it there",
        ),
        (
            "job \"a\" {\n type = \"batch\";\n}",
            "2:16: no ; ends an attribute or a block; remove it",
        ),
        ("job \"a\" {\n x { a = 1 };\n}", "2:13: no ; ends an attribute or a block; remove it"),
        ("job \"a\" {\n x { a = 1; }\n}", "2:11: no ; ends an attribute or a block; remove it"),
        ("job “a” {\n}", "1:5: a text must be in straight double quotes: \"a\""),
        ("job \"a\" {\n x = [“dc1”]\n}", "2:7: a text must be in straight double quotes: \"dc1\""),
        ("job \"a\" {\n x = ‘dc1’\n}", "2:6: a text must be in straight double quotes: \"dc1\""),
        (
            "job \"a\" {\n x = “dc1\n}",
            "2:6: a text must be in double quotes, as in \"…\", not in “",
        ),
    ] {
        check(text, &[expected]);
    }
}

#[test]
fn what_cannot_be_evaluated_is_one_problem_wherever_it_stands() {
    for (body, at) in [
        ("meta {\na = nosuch\n}", "6:5"),
        ("env {\na = nosuch\n}", "6:5"),
        ("config {\na = nosuch\n}", "6:5"),
        ("user = nosuch", "5:8"),
        ("leader = nosuch", "5:10"),
        ("kill_timeout = nosuch", "5:16"),
        ("resources {\ncpu = nosuch\n}", "6:7"),
        ("artifact {\nsource = \"https://h/x\"\noptions = nosuch\n}", "7:11"),
    ] {
        check(&in_task(body), &[&format!("{at}: a name without meaning here")]);
    }
    let check_of = |header: &str| {
        in_group(&format!(
            "service {{\nprovider = \"nomad\"\nport = \"80\"\ncheck {{\ntype = \"http\"\npath = \
             \"/\"\ninterval = \"9s\"\ntimeout = \"2s\"\n{header}\n}}\n}}"
        ))
    };
    for header in ["header = nosuch", "header {\nX = nosuch\n}"] {
        let text = check_of(header);
        let found = super::problems(&text);
        assert!(found.len() == 1 && found[0].contains("a name without meaning here"), "{found:?}");
    }
}

#[test]
fn an_empty_text_is_refused_with_what_needs_it() {
    let text = in_task("volume_mount {\nvolume = \"\"\ndestination = \" \"\n}");
    check(
        &text,
        &[
            "6:10: volume must not be empty; volume_mount needs a volume: the name of one of the",
            "7:15: destination must not be empty; volume_mount needs a destination: a path in the task",
        ],
    );
    check(
        &in_group("volume \"v\" {\ntype = \"host\"\nsource = \"\"\n}"),
        &["6:10: source must not be empty; a volume needs a source: the name of a host_volume"],
    );
    check(
        &in_group("volume \"v\" {\ntype = \"host\"\nsource = \"a\\u0000b\"\n}"),
        &["6:10: source must not contain the character NUL"],
    );
}
