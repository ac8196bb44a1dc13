//! What each function gives, as observed of Nomad 1.0.18.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;

use serde_json::Value as Json;

use crate::{Diagnostics, Inputs, read_with};

/// The value of an expression in a task's `config`.
fn value(expr: &str, inputs: &Inputs) -> Result<Json, Diagnostics> {
    let text = format!(
        "job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{\ndriver = \"mock\"\nconfig {{\nv = {expr}\n}}\n}}\n}}\n}}\n"
    );
    let parsed = read_with(text.as_bytes(), Path::new("j.hcl"), None, inputs)?;
    Ok(parsed.job.groups[0].tasks[0].config.map()["v"].clone())
}

fn on_disk() -> Inputs {
    Inputs { directory: Some("/".into()), ..Inputs::default() }
}

/// Expressions and their values as JSON.
#[rustfmt::skip]
const VALUES: &[(&str, &str)] = &[
    ("abs(-5)", "5"),
    ("abs(-2.5)", "2.5"),
    (r#"base64decode("aGVsbG8=")"#, r#""hello""#),
    (r#"base64encode("hello ü")"#, r#""aGVsbG8gw7w=""#),
    ("can(1 + 1)", "true"),
    ("can([1][5])", "false"),
    ("ceil(1.2)", "2"),
    ("ceil(-1.2)", "-1"),
    ("floor(1.8)", "1"),
    ("floor(-1.2)", "-2"),
    (r#"chomp("a\n\n")"#, r#""a""#),
    (r#"chomp("a\r\n")"#, r#""a""#),
    (r#"chunklist(["a","b","c"], 2)"#, r#"[["a","b"],["c"]]"#),
    ("chunklist([], 2)", "[]"),
    (r#"cidrhost("10.12.127.0/20", 16)"#, r#""10.12.112.16""#),
    (r#"cidrhost("10.12.127.0/20", 268)"#, r#""10.12.113.12""#),
    (r#"cidrhost("fd00:fd12:3456:7890:00a2::/72", 34)"#, r#""fd00:fd12:3456:7890::22""#),
    (r#"cidrnetmask("172.16.0.0/12")"#, r#""255.240.0.0""#),
    (r#"cidrsubnet("172.16.0.0/12", 4, 2)"#, r#""172.18.0.0/16""#),
    (r#"cidrsubnet("10.1.2.0/24", 4, 15)"#, r#""10.1.2.240/28""#),
    (r#"cidrsubnet("fd00:fd12:3456:7890::/56", 16, 162)"#, r#""fd00:fd12:3456:7800:a200::/72""#),
    (r#"cidrsubnets("10.1.0.0/16", 4, 4, 8, 4)"#, r#"["10.1.0.0/20","10.1.16.0/20","10.1.32.0/24","10.1.48.0/20"]"#),
    (r#"coalesce(null, "a", "b")"#, r#""a""#),
    (r#"coalesce("", "b")"#, r#""""#),
    (r#"coalesce(1, "b")"#, r#""1""#),
    (r#"coalescelist([], ["c"], ["d"])"#, r#"["c"]"#),
    (r#"compact(["a", "", "b"])"#, r#"["a","b"]"#),
    (r#"concat(["a"], ["b", 1])"#, r#"["a","b",1]"#),
    (r#"contains(["a","b"], "a")"#, "true"),
    (r#"contains(["a","b"], "c")"#, "false"),
    ("contains([1,2], 1)", "true"),
    (r#"convert("5", number)"#, "5"),
    ("convert(5, string)", r#""5""#),
    (r#"convert(["b","a","b"], set(string))"#, r#"["a","b"]"#),
    ("convert({a=1}, map(string))", r#"{"a":"1"}"#),
    (r#"convert([1,"a"], list(any))"#, r#"["1","a"]"#),
    (r#"convert("true", bool)"#, "true"),
    (r#"csvdecode("a,b\n1,2\n3,4\n")"#, r#"[{"a":"1","b":"2"},{"a":"3","b":"4"}]"#),
    (r#"distinct(["a","b","a"])"#, r#"["a","b"]"#),
    (r#"element(["a","b","c"], 4)"#, r#""b""#),
    (r#"flatten([["a",["b"]],[],["c"]])"#, r#"["a","b","c"]"#),
    (r#"format("%s-%d-%v", "a", 5, true)"#, r#""a-5-true""#),
    (r#"format("%05d|%-5s|%5s|%.2f|%x|%X|%o|%b|%e|%g|%q|%t|%%", 42, "ab", "cd", 3.14159, 255, 255, 8, 5, 123456.789, 0.000001, "q\"", true)"#, r#""00042|ab   |   cd|3.14|ff|FF|10|101|1.234568e+05|1e-06|\"q\\\"\"|true|%""#),
    (r#"format("%+d % d %#x %#o %08.3f", 5, 5, 255, 8, 3.14159)"#, r#""+5  5 0xff 010 0003.142""#),
    (r#"format("%#08x %#6x %-#6x|", 255, 255, 255)"#, r#""0x0000ff   0xff 0xff  |""#),
    (r#"format("%[2]s %[1]s", "a", "b")"#, r#""b a""#),
    (r#"format("%v %v %v", [1,"a"], {a=1}, null)"#, r#""[1,\"a\"] {\"a\":1} null""#),
    (r#"format("%#v", "x")"#, r#""\"x\"""#),
    (r#"format("%v", 1e30)"#, r#""1e+30""#),
    (r#"format("%v", 0.1)"#, r#""0.1""#),
    (r#"format("%v", 123456789012)"#, r#""1.23456789012e+11""#),
    (r#"format("%g", 1e25)"#, r#""1e+25""#),
    (r#"format("%.3s", "abcdef")"#, r#""abc""#),
    (r#"format("%s", 1.5)"#, r#""1.5""#),
    (r#"format("%5.1f|%-8.3e|", 2.25, 1234.5)"#, r#""  2.2|1.234e+03|""#),
    (r#"format("%G", 1e-10)"#, r#""1E-10""#),
    (r#"formatdate("YYYY-MM-DD hh:mm:ss ZZZ", "2018-01-02T23:12:01Z")"#, r#""2018-01-02 23:12:01 UTC""#),
    (r#"formatdate("EEEE, DD-MMM-YY H:mm AA 'o''clock' ZZZZZ", "2018-01-02T23:12:01+02:00")"#, r#""Tuesday, 02-Jan-18 11:12 PM o'clock +02:00""#),
    (r#"formatdate("EEE D MMMM M h Z ZZZZ", "2018-01-02T03:12:01Z")"#, r#""Tue 2 January 1 3 Z +0000""#),
    (r#"formatlist("%s=%s", ["a","b"], ["1","2"])"#, r#"["a=1","b=2"]"#),
    (r#"formatlist("%s-%d", "x", [1,2])"#, r#"["x-1","x-2"]"#),
    (r#"formatlist("x")"#, r#"["x"]"#),
    (r#"indent(2, "a\nb\nc")"#, r#""a\n  b\n  c""#),
    (r#"index(["a","b"], 1)"#, r#""b""#),
    (r#"join(",", ["a","b"])"#, r#""a,b""#),
    (r#"join(",", ["a"], ["b","c"])"#, r#""a,b,c""#),
    (r#"jsondecode("{\"a\":[1,null,true,\"x\",1.5]}")"#, r#"{"a":[1,null,true,"x",1.5]}"#),
    (r#"jsonencode({b=1,a=[true,null,"x<>&"]})"#, r#""{\"a\":[true,null,\"x\\u003c\\u003e\\u0026\"],\"b\":1}""#),
    ("keys({b=1,a=2})", r#"["a","b"]"#),
    ("length([1,2])", "2"),
    ("log(8, 2)", "3"),
    ("log(100, 10)", "2"),
    (r#"lookup({a="x"}, "a", "d")"#, r#""x""#),
    (r#"lookup({a="x"}, "b", "d")"#, r#""d""#),
    (r#"lower("ÄB")"#, r#""äb""#),
    ("max(1, 5, 3)", "5"),
    (r#"md5("hello")"#, r#""5d41402abc4b2a76b9719d911017c592""#),
    (r#"merge({a=1,b=2},{b=3},{c="x"})"#, r#"{"a":1,"b":3,"c":"x"}"#),
    ("min(1, 5, -3)", "-3"),
    (r#"parseint("ff", 16)"#, "255"),
    (r#"parseint("-101", 2)"#, "-5"),
    (r#"parseint("Zz", 62)"#, "3817"),
    ("pow(2, 10)", "1024"),
    ("pow(2, 0.5)", "1.4142135623730951"),
    ("range(3)", "[0,1,2]"),
    ("range(1,4)", "[1,2,3]"),
    ("range(1,8,2)", "[1,3,5,7]"),
    ("range(4,1)", "[4,3,2]"),
    ("range(0)", "[]"),
    ("range(0,1,0.25)", "[0,0.25,0.5,0.75]"),
    (r#"reverse("abc")"#, r#""cba""#),
    (r#"strrev("hello")"#, r#""olleh""#),
    (r#"replace("a-b-c", "-", "+")"#, r#""a+b+c""#),
    (r#"regex_replace("ab12cd", "([0-9])", "<$1>")"#, r#""ab<1><2>cd""#),
    (r#"regex_replace("hello world", "(?P<w>o)", "[$${w}]")"#, r#""hell[o] w[o]rld""#),
    (r#"setintersection(["a","b"],["b","c"])"#, r#"["b"]"#),
    (r#"setproduct(["a","b"],[1,2])"#, r#"[["a",1],["a",2],["b",1],["b",2]]"#),
    (r#"setunion(["b","a"],["c","a"])"#, r#"["a","b","c"]"#),
    (r#"sha1("hello")"#, r#""aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d""#),
    (r#"sha256("hello")"#, r#""2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824""#),
    (r#"sha512("hello")"#, r#""9b71d224bd62f3785d96d46ad3ea3d73319bfbc2890caadae2dff72519673ca72323c3d99ba5c11d7c7acc6e14b8c5da0c4663475c2e5c3adef46f73bcdec043""#),
    ("signum(-5)", "-1"),
    (r#"slice(["a","b","c"],1,3)"#, r#"["b","c"]"#),
    (r#"sort(["b","a","C"])"#, r#"["C","a","b"]"#),
    (r#"split(",", "a,b,,c")"#, r#"["a","b","","c"]"#),
    (r#"split("", "abc")"#, r#"["a","b","c"]"#),
    (r#"substr("hello world", 1, 4)"#, r#""ello""#),
    (r#"substr("hello", -3, -1)"#, r#""llo""#),
    (r#"substr("hello", 0, 100)"#, r#""hello""#),
    (r#"timeadd("2017-11-22T00:00:00Z", "10m")"#, r#""2017-11-22T00:10:00Z""#),
    (r#"timeadd("2017-11-22T00:00:00.5+01:00", "-1h30m")"#, r#""2017-11-21T22:30:00+01:00""#),
    (r#"title("hello wörld-x it's")"#, r#""Hello Wörld-X It'S""#),
    (r#"trim("?!hello?!", "!?")"#, r#""hello""#),
    (r#"trimprefix("helloworld", "hello")"#, r#""world""#),
    (r#"trimspace("  a\n ")"#, r#""a""#),
    (r#"trimsuffix("helloworld", "world")"#, r#""hello""#),
    (r#"try([1][5], "fallback")"#, r#""fallback""#),
    ("try({a=1}.b, 7)", "7"),
    (r#"upper("abc")"#, r#""ABC""#),
    (r#"urlencode("a b&c/ü~*")"#, r#""a+b%26c%2F%C3%BC~%2A""#),
    (r#"uuidv5("dns", "www.terraform.io")"#, r#""a5008fae-b28c-5ba5-96cd-82b4c53552d6""#),
    (r#"uuidv5("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "x")"#, r#""05b16a01-46c6-56dd-bd6e-c6dfb4a1427a""#),
    (r#"values({b=1,a="x"})"#, r#"["x",1]"#),
    (r#"yamldecode("a: 1\nb: [x, true, null, ~, 1.5]\nc: 'y'\nd:\n- 0x10\n- \"5\"\n")"#, r#"{"a":1,"b":["x",true,null,null,1.5],"c":"y","d":[16,"5"]}"#),
    (r#"yamlencode({a=[1,"x",{c=true,d=[]}],b={},z=null,m={k="v"}})"#, r#""\"a\":\n- 1\n- \"x\"\n- \"c\": true\n  \"d\": []\n\"b\": {}\n\"m\":\n  \"k\": \"v\"\n\"z\": null\n""#),
    (r#"yamlencode("x")"#, r#""\"x\"\n""#),
    ("yamlencode([1,[2,3]])", r#""- 1\n- - 2\n  - 3\n""#),
    (r#"zipmap(["a","b"],[1,"x"])"#, r#"{"a":1,"b":"x"}"#),
    (r#"[for x in ["a","b"] : upper(x)]"#, r#"["A","B"]"#),
    (r#"[for i, x in ["a","b"] : "${i}=${x}"]"#, r#"["0=a","1=b"]"#),
    (r#"[for k, v in {b=1,a=2} : "${k}${v}"]"#, r#"["a2","b1"]"#),
    (r#"{for x in ["a","b"] : x => upper(x)}"#, r#"{"a":"A","b":"B"}"#),
    (r#"{for i, x in ["a","b","a"] : x => i...}"#, r#"{"a":[0,2],"b":[1]}"#),
    ("[for x in [1,2,3] : x if x > 1]", "[2,3]"),
    (r#"{for k, v in {a=1,b=2} : k => v if k != "a"}"#, r#"{"b":2}"#),
    (r#"[for x in convert(["b","a"], set(string)) : x]"#, r#"["a","b"]"#),
    (r#"{for k, v in convert(["b","a"], set(string)) : k => v}"#, r#"{"a":"a","b":"b"}"#),
    ("[{a=1},{a=2}][*].a", "[1,2]"),
    ("[{a=1},{a=2}].*.a", "[1,2]"),
    ("{a=[{b=1}]}.a[0].b", "1"),
    ("[[1,2],[3]][*][0]", "[1,3]"),
    ("null[*]", "[]"),
    (r#""x"[*]"#, r#"["x"]"#),
    (r#""%{ if true }yes%{ else }no%{ endif }""#, r#""yes""#),
    (r#""%{ for x in ["a","b"] }<${x}>%{ endfor }""#, r#""<a><b>""#),
    (r#""a %{~ if true ~} b %{~ endif ~} c""#, r#""abc""#),
    (r#""x ${~ "y" ~} z""#, r#""xyz""#),
    (r#"true ? 1 : "a""#, r#""1""#),
    (r#"false ? "a" : true"#, r#""true""#),
    ("true ? [1] : []", "[1]"),
    ("1 + 2 * 3", "7"),
    ("7 / 2", "3.5"),
    ("-7 % 4", "-3"),
    ("7 % 2.5", "2"),
    ("0.1 + 0.2", "0.3"),
    ("1 / 3 * 3", "1"),
    ("0.1 * 3", "0.3"),
    ("2.5 * 2", "5"),
    ("1e3", "1000"),
    (r#""${1.5}""#, "1.5"),
    ("1 == 1.0", "true"),
    (r#""1" == 1"#, "false"),
    ("[1] == [1]", "true"),
    ("{a=1} == {a=1}", "true"),
    ("!false && (1 < 2 || false)", "true"),
    ("max(1.5, 2)", "2"),
    (r#"convert({a="1"}, object({a=number}))"#, r#"{"a":1}"#),
    (r#"convert(["1",2], tuple([number,string]))"#, r#"[1,"2"]"#),
    ("convert([1,2], list(string))", r#"["1","2"]"#),
    (r#"basename("/a/b/c.txt")"#, r#""c.txt""#),
    (r#"dirname("/a/b/c.txt")"#, r#""/a/b""#),
    (r#"basename("a/")"#, r#""a""#),
    (r#"dirname("a")"#, r#"".""#),
    (r#"abspath("/a/../b")"#, r#""/b""#),
    (r#"fileexists("/etc/hostname")"#, "true"),
    (r#"pathexpand("/x")"#, r#""/x""#),
    (r#"bcrypt("a") != """#, "true"),
    (r#"uuidv4() != """#, "true"),
    ("merge({a=1}, null)", r#"{"a":1}"#),
    (r#"distinct([1,"1"])"#, r#"["1"]"#),
    ("sort([3,20,1])", r#"["1","20","3"]"#),
    ("compact([])", "[]"),
    (r#"setproduct([],["a"])"#, "[]"),
    ("values({})", "[]"),
    ("keys({})", "[]"),
    (r#"trim("  a ", " ")"#, r#""a""#),
    (r#"replace("aaa", "/a/", "b")"#, r#""aaa""#),
    (r#"strrev("noël")"#, r#""lëon""#),
    ("upper(5)", r#""5""#),
    (r#""${true}""#, "true"),
    (r#"parseint("10", 8)"#, "8"),
    (r#"coalesce([], ["a"])"#, "[]"),
];

#[test]
fn functions_and_operators_give_what_nomad_gives() {
    let mut wrong = Vec::new();
    for (expr, expected) in VALUES {
        let expected: Json = serde_json::from_str(expected).unwrap();
        match value(expr, &on_disk()) {
            Ok(found) if same(&found, &expected) => {}
            Ok(found) => wrong.push(format!("{expr}: {found} is not {expected}")),
            Err(found) => wrong.push(format!("{expr}: {found}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Numbers by value: 2 is 2.0.
fn same(found: &Json, expected: &Json) -> bool {
    match (found, expected) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[test]
#[rustfmt::skip]
fn what_nomad_refuses_is_refused_with_its_place() {
    for expr in [
        "convert(5, bool)",
        r#"convert("x", number)"#,
        r#"length("abc")"#,
        "range(2000)",
        "element([], 0)",
        r#"format("%d", 1.5)"#,
        r#"format("%s")"#,
        r#"format("x", 1)"#,
        r#"format("%z", 1)"#,
        r#"cidrsubnet("10.0.0.0/30", 4, 1)"#,
        "length(uuidv4()) > 0",
        r#"contains("abc", "a")"#,
    ] {
        let found = value(expr, &on_disk()).expect_err(expr);
        assert!(found.iter().all(|d| d.line == 6), "{expr}: {found}");
        assert_eq!(found.len(), 1, "{expr}: {found}");
    }
}

#[test]
fn every_function_of_nomad_is_there() {
    let known = super::names();
    for name in [
        "abs",
        "abspath",
        "base64decode",
        "base64encode",
        "basename",
        "bcrypt",
        "can",
        "ceil",
        "chomp",
        "chunklist",
        "cidrhost",
        "cidrnetmask",
        "cidrsubnet",
        "cidrsubnets",
        "coalesce",
        "coalescelist",
        "compact",
        "concat",
        "contains",
        "convert",
        "csvdecode",
        "dirname",
        "distinct",
        "element",
        "file",
        "fileexists",
        "fileset",
        "flatten",
        "floor",
        "format",
        "formatdate",
        "formatlist",
        "indent",
        "index",
        "join",
        "jsondecode",
        "jsonencode",
        "keys",
        "length",
        "log",
        "lookup",
        "lower",
        "max",
        "md5",
        "merge",
        "min",
        "parseint",
        "pathexpand",
        "pow",
        "range",
        "regex_replace",
        "replace",
        "reverse",
        "rsadecrypt",
        "setintersection",
        "setproduct",
        "setunion",
        "sha1",
        "sha256",
        "sha512",
        "signum",
        "slice",
        "sort",
        "split",
        "strrev",
        "substr",
        "timeadd",
        "title",
        "trim",
        "trimprefix",
        "trimspace",
        "trimsuffix",
        "try",
        "upper",
        "urlencode",
        "uuidv4",
        "uuidv5",
        "values",
        "yamldecode",
        "yamlencode",
        "zipmap",
    ] {
        assert!(known.contains(&name), "{name}");
    }
}

#[test]
fn files_are_read_from_the_directory_that_is_given_and_by_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), "${NOMAD_X} $${Y}\n").unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub/b.txt"), "b").unwrap();
    let inputs = Inputs { directory: Some(dir.path().to_owned()), ..Inputs::default() };
    let v = |expr: &str| value(expr, &inputs);
    // What is in a file is text: it can be computed with, whatever stands in it.
    assert_eq!(v("file(\"a.txt\")").unwrap(), "${NOMAD_X} $${Y}\n");
    assert_eq!(v("lower(file(\"a.txt\"))").unwrap(), "${nomad_x} $${y}\n");
    assert_eq!(v("upper(file(\"./sub/../sub/b.txt\"))").unwrap(), "B");
    assert_eq!(v("fileexists(\"a.txt\")").unwrap(), true);
    assert_eq!(v("fileexists(\"c.txt\")").unwrap(), false);
    assert_eq!(
        v("fileset(\".\", \"**/*.txt\")").unwrap(),
        serde_json::json!(["a.txt", "sub/b.txt"])
    );
    assert_eq!(v("fileset(\".\", \"*.txt\")").unwrap(), serde_json::json!(["a.txt"]));
    assert_eq!(v("fileset(\"none\", \"*\")").unwrap(), serde_json::json!([]));
    for (expr, expected) in [
        ("file(\"gone\")", "No such file"),
        ("file(\"sub\")", "not a regular file"),
        ("file(\"/dev/zero\")", "not a regular file"),
        ("fileexists(\"sub\")", "not a regular file"),
        ("fileset(\".\", \"[\")", "the pattern cannot be used"),
    ] {
        let found = v(expr).unwrap_err().to_string();
        assert!(found.contains(expected), "{expr}: {found}");
    }
    std::fs::write(dir.path().join("bin"), [0xff]).unwrap();
    assert!(v("file(\"bin\")").unwrap_err().to_string().contains("is not text"));
    for expr in ["file(\"a.txt\")", "abspath(\".\")", "fileset(\".\", \"*\")", "pathexpand(\"~\")"]
    {
        let found = value(expr, &Inputs::default()).unwrap_err().to_string();
        assert!(found.contains("works only where the command line reads the job file"), "{found}");
    }
}

#[test]
fn what_is_known_later_goes_through_what_puts_texts_together_and_through_nothing_else() {
    let v = |expr: &str| value(expr, &Inputs::default());
    for (expr, expected) in [
        (
            r#"join("-", [attr.x, "${NOMAD_PORT_p}", "$${HOME}"])"#,
            r#""${attr.x}-${NOMAD_PORT_p}-${HOME}""#,
        ),
        (r#"format("%s:%5s|%v", attr.x, "$${A}", meta.y)"#, r#""${attr.x}: ${A}|${meta.y}""#),
        (r#"jsonencode({a = attr.x})"#, r#""{\"a\":\"${attr.x}\"}""#),
        (r#"merge({a = attr.x}, {b = 1})"#, r#"{"a":"${attr.x}","b":1}"#),
        (r#"[for x in [attr.x, 1] : "<${x}>"]"#, r#"["<${attr.x}>","<1>"]"#),
        (r#"upper("$${home}")"#, r#""${HOME}""#),
        (r#"replace("{x}", "{", "$${")"#, r#""${x}""#),
        (r#""${"$"}${"{x}"}""#, r#""${x}""#),
        (r#"strrev(join("", ["x$${", "}"]))"#, r#""}{$x""#),
    ] {
        let expected: Json = serde_json::from_str(expected).unwrap();
        assert_eq!(v(expr).unwrap_or_else(|e| panic!("{expr}: {e}")), expected, "{expr}");
    }
    for expr in [
        "upper(attr.x)",
        "split(\",\", attr.x)",
        "md5(\"${NOMAD_X}\")",
        "sort([attr.x])",
        "contains([attr.x], 1)",
        "attr.x == 1",
        "format(\"%d\", attr.x)",
        "format(\"%.2s\", attr.x)",
        "format(\"%9s\", attr.x)",
        "convert(attr.x, number)",
        "[for x in attr.x : x]",
        "length(attr.x)",
    ] {
        let found = v(expr).unwrap_err().to_string();
        assert!(found.contains("known only when the task starts"), "{expr}: {found}");
    }
}
