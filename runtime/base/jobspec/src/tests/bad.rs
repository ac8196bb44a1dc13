//! Files that are refused: every problem, its place and what may have been meant.

use super::{check, in_group, in_job, in_task, problems};

#[test]
fn everything_wrong_is_reported_at_once() {
    check(
        r#"jobb "x" {}
job "redis" {
  datacenters = "dc1"
  typ = "service"
  priority = 200
  update { max_parallel = -2 }
  group "cache" {
    cout = 2
    task "a" {
      drivr = "exec"
      resources { cpu = "many" }
    }
  }
}
"#,
        &[
            "1:1: \"jobb\" is unknown at the top … (did you mean job?)",
            "3:17: datacenters must be a list of texts, not \"dc1\"",
            "4:3: \"typ\" is unknown in a job (did you mean type?)",
            "5:14: priority must be 1 to 100, not 200",
            "6:27: max_parallel must be",
            "8:5: \"cout\" is unknown in a group (did you mean count?)",
            "9:5: a task needs a driver",
            "10:7: \"drivr\" is unknown in a task (did you mean driver?)",
            "11:25: cpu must be a whole number, not \"many\"",
        ],
    );
}

#[test]
fn problems_of_a_task_have_their_places() {
    for (body, expected) in [
        (
            "kill_timeout = 20",
            "5:16: kill_timeout: \"20\": a duration needs a unit … (did you mean \"20s\"?)",
        ),
        ("kill_timeout = \"-1s\"", "5:16: kill_timeout: \"-1s\": a duration must not be negative"),
        ("kill_timeout = [1]", "5:16: kill_timeout must be a duration"),
        ("kill_signal = \"TERM\"", "5:15: \"TERM\" is not a signal … (did you mean SIGTERM?)"),
        ("kill_signal = \"SIGITN\"", "5:15: \"SIGITN\" is not a signal … (did you mean SIGINT?)"),
        ("leader = 1", "5:10: leader must be true or false, not a number"),
        ("leader {}", "5:1: leader is not a block; write leader = …"),
        ("resources = {}", "5:1: resources is a block; write resources { … }"),
        ("user = \"a\"\nuser = \"b\"", "6:1: \"user\" is given twice"),
        ("resources {}\nresources {}", "6:1: resources is given twice"),
        ("env { A = [1] }", "5:11: A must be a text, not a list"),
        ("env = \"A=1\"", "5:7: env must be an object"),
        ("env = { \"A=B\" = 1 }", "5:9: \"A=B\" is not a valid name of a variable"),
        ("env = { A = \"\\u0000\" }", "5:13: a text here must not contain the character NUL"),
        ("logs { max_files = 0 }", "5:20: max_files must be at least 1, not 0"),
        ("resources { cpu = 1.5 }", "5:19: cpu must be a whole number"),
        ("resources { memory = 0 }", "5:22: memory must be at least 1, not 0"),
        ("resources { memory_max = 1 }", "5:26: memory_max (1) must not be below memory (300)"),
        (
            "resources {\nnetwork {\nport \"a\" {}\nport \"a\" {}\n}\n}",
            "8:6: a port \"a\" is already defined",
        ),
        (
            "volume_mount {\nvolume = \"x\"\ndestination = \"/x\"\n}",
            "6:10: the group has no volume \"x\"",
        ),
        ("resources {\ndevice \"gpu\" { count = 0 }\n}", "6:24: count must be at least 1, not 0"),
        ("resources {\ndevice \"a//b\" {}\n}", "6:8: \"a//b\" is not a device"),
        (
            "resources {\nnuma { affinity = \"prefer\" }\n}",
            "6:1: numa needs devices or, beside it, cores",
        ),
        (
            "resources {\ndevice \"gpu\" {}\ncores = 1\nnuma {\naffinity = \"require\"\ndevices = [\"gpu\"]\n}\n}",
            "10:1: devices beside cores: cores and devices are not brought to one NUMA node together",
        ),
        ("resources {\ncpu = 100\ncores = 1\n}", "7:1: cores and cpu are both here"),
        ("resources {\ncores = 0\n}", "6:9: cores must be at least 1, not 0"),
        (
            "resources {\ndevice \"gpu\" {}\nnuma {\naffinity = \"require\"\ndevices = [\"gpv\"]\n}\n}",
            "9:12: \"gpv\" is not a device of these resources",
        ),
        (
            "resources {\nnuma { affinity = \"requre\" }\n}",
            "6:19: \"requre\" … (did you mean require?)",
        ),
        ("resources {\ndevice {}\n}", "6:1: device needs a name; write device \"name\" { … }"),
        (
            "resources {\ndevice \"gpu\" {\naffinity {\nattribute = attr.x\nvalue = 1\nweight = 0\n}\n}\n}",
            "10:10: an affinity of weight 0",
        ),
        (
            "resources {\ndevice \"gpu\" {\naffinity {\nattribute = attr.x\nvalue = 1\nweight = 101\n}\n}\n}",
            "10:10: weight must be -100 to 100, not 101",
        ),
        ("constraint { attribute = attr.x }", "5:1: a constraint needs a value"),
        ("constraint { value = 1 }", "5:1: a constraint needs an attribute"),
        (
            "constraint {\nattribute = attr.x\noperator = \"versoin\"\nvalue = 1\n}",
            "7:12: \"versoin\" is not an operator … (did you mean version?)",
        ),
        (
            "constraint {\noperator = \"distinct_hosts\"\nvalue = true\n}",
            "6:12: distinct_hosts is about whole allocations; write it into the group or the job",
        ),
        (
            "constraint { distinct_property = attr.x }",
            "5:34: distinct_property is about whole allocations",
        ),
        (
            "affinity {\nattribute = attr.x\noperator = \"is_set\"\n}",
            "7:12: is_set is not an operator of affinities",
        ),
        (
            "affinity {\nattribute = attr.x\nregexp = \"(\"\n}",
            "7:10: \"(\" is not a regular expression",
        ),
        (
            "dispatch_payload { file = \"x\" }",
            "5:1: dispatch_payload is valid in Nomad, not supported by Ostler; it belongs to jobs that servers \
             dispatch",
        ),
        (
            "identity { env = true }",
            "5:1: identity is valid in Nomad, not supported by Ostler; identities are signed by the servers",
        ),
        (
            "csi_plugin { id = \"x\" }",
            "5:1: csi_plugin is valid in Nomad, not supported by Ostler; this agent runs no CSI",
        ),
        (
            "consul {}",
            "5:1: consul is valid in Nomad, not supported by Ostler; this agent does not use Consul",
        ),
        (
            "constraint {\nattribute = attr.x\nregexp = \"a\"\nvalue = 1\n}",
            "7:10: a constraint compares once",
        ),
        (
            "restart { mode = \"dely\" }",
            "5:18: \"dely\" is not a valid restart mode … (did you mean delay?)",
        ),
        ("restart { interval = \"4s\" }", "5:22: the restart interval must be at least 5s"),
        (
            "restart {\nattempts = 5\ninterval = \"10s\"\ndelay = \"3s\"\n}",
            "6:12: 5 restarts with a delay of 3s do not fit into an interval of 10s",
        ),
        (
            "restart {\nattempts = 0\nmode = \"delay\"\n}",
            "7:8: no attempts and mode delay contradict",
        ),
        ("template {\ndata = 1\n}", "5:1: a template needs a destination"),
        ("template {\ndestination = \"x\"\n}", "5:1: a template needs data or source"),
        (
            "template {\ndata = \"\"\nsource = \"a\"\ndestination = \"x/\"\n}",
            "8:15: the destination is not a path of a file",
        ),
        (
            "template {\ndata = \"x\"\nsource = \"a\"\ndestination = \"x\"\n}",
            "7:10: a template has data or source, not both",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"a\\n{{ key \\\"b\\\" }}\"\n}",
            "7:8: template:2:4: function key is not available: it asks Consul",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"{{ a }}\"\nleft_delimiter = \"a b\"\n}",
            "8:18: left_delimiter must be one word of at most 16 bytes",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"x\"\nperms = \"99\"\n}",
            "8:9: perms must be an octal number",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"x\"\nchange_mode = \"reload\"\n}",
            "8:15: \"reload\" is not a valid change mode",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"x\"\nchange_mode = \"signal\"\nenv = true\n}",
            "8:15: a running task does not read its environment again",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"x\"\nchange_mode = \"script\"\n}",
            "8:15: change_mode = \"script\" needs a change_script",
        ),
        (
            "template {\ndestination = \"x\"\ndata = \"x\"\nwait {\nmin = \"5s\"\nmax = \"1s\"\n}\n}",
            "10:7: max of wait is shorter than its min",
        ),
        (
            "vault = { policies = [\"x\"] }",
            "5:1: vault is valid in Nomad, not supported by Ostler; this agent does not use Vault",
        ),
        ("config = 1", "5:10: config must be an object, not a number"),
        ("config \"x\" {}", "5:8: config takes no label"),
        ("config {\na {}\na = 1\n}", "7:1: \"a\" is given twice"),
    ] {
        check(&in_task(body), &[expected]);
    }
}

#[test]
fn problems_of_a_group_have_their_places() {
    for (body, expected) in [
        ("count = -1", "4:9: count must be at least 0, not -1"),
        ("count = 50001", "2:7: the job has 50001 tasks up to here"),
        ("task \"t\" { driver = \"x\" }", "4:6: a task \"t\" is already defined"),
        ("task \"../x\" { driver = \"x\" }", "4:6: task name \"../x\" contains '/'"),
        ("task \"u\" { driver = \"\" }", "4:21: plugin name must not be empty"),
        ("task { driver = \"x\" }", "4:1: task needs a name; write task \"name\" { … }"),
        ("task \"a\" \"b\" { driver = \"x\" }", "4:10: task takes one label"),
        ("task \"u\" {\ndriver = \"x\"\nlifecycle {}\n}", "6:1: lifecycle needs a hook"),
        (
            "task \"u\" {\ndriver = \"x\"\nlifecycle { hook = \"poststrat\" }\n}",
            "6:20: \"poststrat\" is not a valid lifecycle hook … (did you mean poststart?)",
        ),
        (
            "task \"u\" {\ndriver = \"x\"\nleader = true\nlifecycle { hook = \"poststop\" }\n}",
            "4:6: a task with a lifecycle cannot lead",
        ),
        ("network { mode = \"cni/../x\" }", "4:18: \"../x\" is not the name of a CNI network"),
        (
            "network {\nmode = \"none\"\nport \"a\" {}\n}",
            "4:1: ports in a network of mode none cannot be reached",
        ),
        (
            "network {\nmode = \"bridge\"\ndns { servers = [\"x\"] }\n}",
            "6:18: \"x\" is not the address of a name server",
        ),
        (
            "network {\nhostname = \"x\"\n}",
            "5:12: in the node's own network tasks have the node's own name",
        ),
        (
            "network {\nmode = \"bridge\"\nhostname = \"a_b\"\n}",
            "6:12: \"a_b\" is not a valid host name",
        ),
        (
            "network { mode = \"hots\" }",
            "4:18: \"hots\" is not a network mode; use host, bridge, none or cni/NAME (did you mean host?)",
        ),
        ("network {}\nnetwork {}", "5:1: a group has one network"),
        ("network {\nport \"a b\" {}\n}", "5:6: \"a b\" is not a valid port label"),
        (
            "network {\nport \"a-b\" {}\nport \"a.b\" {}\n}",
            "6:6: \"a-b\" already has the variable NOMAD_PORT_a_b",
        ),
        ("network {\nport \"a\" {}\nport \"a\" {}\n}", "6:6: a port \"a\" is already defined"),
        ("network {\nport \"a\" { static = 0 }\n}", "5:21: static must be 1 to 65535, not 0"),
        (
            "network {\nport \"a\" { static = 65536 }\n}",
            "5:21: static must be 1 to 65535, not 65536",
        ),
        (
            "network {\nport \"a\" { static = 80 }\nport \"b\" { static = 80 }\n}",
            "6:21: port 80 is already taken by \"a\"",
        ),
        ("volume \"x\" {\ntype = \"host\"\n}", "4:1: a volume needs a source"),
        (
            "volume \"x\" {\ntype = \"csi\"\nsource = \"y\"\n}",
            "5:8: a volume of type csi needs a CSI plugin of a cluster",
        ),
        (
            "volume \"x\" {\ntype = \"host\"\nsource = \"y\"\nper_alloc = true\n}",
            "7:1: per_alloc is valid in Nomad",
        ),
        ("scaling {}", "4:1: scaling needs a max"),
        ("scaling {\nmax = 1\nmin = 2\n}", "6:7: max (1) of scaling must not be below min (2)"),
        ("count = 3\nscaling { max = 2 }", "4:9: count (3) must not be above max of scaling (2)"),
        (
            "count = 1\nscaling {\nmin = 2\nmax = 3\n}",
            "4:9: count (1) must not be below min of scaling (2)",
        ),
        (
            "scaling {\nmax = 2\ntype = \"vertical_cpu\"\n}",
            "6:8: type of a group's scaling is \"horizontal\", not \"vertical_cpu\"",
        ),
        ("spread {}", "4:1: a spread needs an attribute"),
        ("spread {\nattribute = \"x\"\nweight = 0\n}", "6:10: weight must be 1 to 100, not 0"),
        (
            "spread {\nattribute = \"x\"\ntarget \"a\" {}\ntarget \"a\" {}\n}",
            "7:8: a target \"a\" is already defined",
        ),
        (
            "spread {\nattribute = \"x\"\ntarget \"a\" { percent = 101 }\n}",
            "6:24: percent must be 0 to 100, not 101",
        ),
        (
            "spread {\nattribute = \"x\"\ntarget \"a\" { percent = 60 }\ntarget \"b\" { percent = 41 }\n}",
            "4:1: the targets of a spread have 101 percent",
        ),
        (
            "constraint {\ndistinct_hosts = true\nattribute = attr.x\n}",
            "5:18: a constraint compares once; with distinct_hosts nothing else",
        ),
        (
            "constraint {\noperator = \"distinct_hosts\"\nvalue = \"yes\"\n}",
            "6:9: value of distinct_hosts must be true or false, not \"yes\"",
        ),
        (
            "constraint {\ndistinct_property = attr.x\nvalue = 0\n}",
            "6:9: value of distinct_property must be a whole number from 1, not \"0\"",
        ),
        (
            "constraint {\ndistinct_hosts = true\ndistinct_property = attr.x\n}",
            "6:21: a constraint is distinct_hosts or distinct_property",
        ),
    ] {
        check(&in_group(body), &[expected]);
    }
}

#[test]
fn problems_of_a_job_have_their_places() {
    for (body, expected) in [
        (
            "group \"g\" {\ntask \"t\" { driver = \"x\" }\n}",
            "5:7: a group \"g\" is already defined",
        ),
        ("group \"h\" {}", "5:1: a group needs at least one task"),
        ("type = \"servce\"", "5:8: \"servce\" is not a valid job type … (did you mean service?)"),
        ("datacenters = []", "5:15: datacenters must not be empty"),
        ("datacenters = [1, []]", "5:19: datacenters must be a list of texts"),
        ("node_pool = \"gpu\"", "5:1: node_pool is valid in Nomad"),
        (
            "periodic {}",
            "5:1: periodic is valid in Nomad, not supported by Ostler; the servers of a cluster start",
        ),
        (
            "parameterized {}",
            "5:1: parameterized is valid in Nomad, not supported by Ostler; the servers of a cluster",
        ),
        (
            "multiregion {}",
            "5:1: multiregion is valid in Nomad, not supported by Ostler; the servers of several",
        ),
        (
            "type = \"system\"\naffinity {\nattribute = attr.x\nvalue = 1\n}",
            "6:1: a system job runs on every node, so it cannot have an affinity",
        ),
        (
            "type = \"system\"\nspread { attribute = attr.x }",
            "6:1: a system job runs on every node, so it cannot have a spread",
        ),
        ("task \"x\" {}", "5:1: a task needs a driver"),
        ("task \"g\" { driver = \"mock\" }", "2:7: a group \"g\" is already defined"),
    ] {
        check(&in_job(body), &[expected]);
    }
    check("job \"a\" {}", &["1:1: a job needs at least one group"]);
    check("job {}", &["1:1: a job needs an id", "1:1: a job needs at least one group"]);
    check("job \"a b\" {}", &["1:1: a job needs at least", "1:5: job id \"a b\" contains ' '"]);
    let turned = in_task("").replacen("job \"j\"", "job \"we\u{202e}b\"", 1);
    assert_ne!(turned, in_task(""));
    let told = r#"1:5: job id "we\u{202e}b" contains U+202E, a character that is invisible … ; leave it out"#;
    check(&turned, &[told]);
    let joined = "group \"g\u{200d}\" {\ntask \"t\" {\ndriver = \"x\"\n}\n}";
    check(
        &in_job(joined),
        &["5:7: task group name \"g\u{200d}\" contains U+200D, … ; leave it out"],
    );
    check("job = 1", &["1:1: job is a block"]);
    let two = format!("{}{}", in_task(""), in_task(""));
    check(&two, &["9:1: a file holds one job"]);
    let text = in_task("").replace("group \"g\" {", "type = \"system\"\ngroup \"g\" {\ncount = 2");
    check(&text, &["4:9: a system job runs once on each node"]);
}

#[test]
fn two_leaders_are_one_too_many() {
    let text = in_group(
        "task \"u\" {\ndriver = \"x\"\nleader = true\n}\ntask \"v\" {\ndriver = \"x\"\nleader = true\n}",
    );
    check(&text, &["8:6: the group already has a leader"]);
}

#[test]
fn expressions_that_cannot_be_evaluated_are_reported_where_they_stand() {
    for (value, expected) in [
        ("foo", "6:5: a name without meaning here; a text needs quotes"),
        ("\"${vra.x}\"", "6:8: neither the file nor Nomad … (did you mean var?)"),
        ("var.x", "6:5: var.x is not declared"),
        ("local.x", "6:5: local.x is not declared"),
        ("[for x in 1 : x]", "6:15: a list, a set or an object is needed here, not a number"),
        ("[for x in [1] : y]", "6:21: a name without meaning here"),
        ("[for x in [1, 2] : x.a]", "6:24: a number has no member \"a\""),
        (
            "{for x in [1, 1] : x => 1}",
            "6:24: two elements have the key \"1\"; end the value with ...",
        ),
        ("\"%{ if 1 }x%{ endif }\"", "6:12: true or false is needed here, not a number"),
        ("uper(\"a\")", "6:5: there is no function \"uper\" (did you mean upper?)"),
        ("upper()", "6:5: a wrong number of arguments"),
        ("upper(attr.x)", "6:11: known only when the task starts"),
        ("attr.x == \"y\" ? 1 : 2", "6:5: known only when the task starts"),
        ("1 / 0", "6:5: this has no result"),
        ("1 + \"x\"", "6:9: a number is needed here, not the text \"x\""),
        ("18446744073709551615 + 1", "6:5: this has no result"),
        ("\"a${[1]}\"", "6:9: a list is not allowed in a text"),
        ("format(\"%d\", \"x\")", "6:18: %d needs a whole number"),
        ("format(\"%s\")", "6:5: \"%s\" needs a value: there are 0"),
    ] {
        check(&in_task(&format!("config {{\na = {value}\n}}")), &[expected]);
    }
}

#[test]
fn locals_that_refer_to_each_other_are_reported() {
    let job = in_task("");
    check(
        &format!("locals {{\n a = local.b\n b = \"${{local.c}}\"\n c = local.a\n}}\n{job}"),
        &["4:6: local.a refers to itself, directly or through others"],
    );
    check(&format!("locals {{\n a = local.a\n}}\n{job}"), &["2:6: local.a refers to itself"]);
    check(
        &format!("variable \"v\" {{ default = var.v }}\n{job}"),
        &["1:26: var.v refers to itself"],
    );
}

#[test]
fn declarations_are_checked() {
    let job = in_task("");
    for (text, expected) in [
        ("variable \"v\" {}", "1:10: the variable \"v\" has no value; give it a default, or"),
        ("variable {}", "1:1: a variable needs one name"),
        (
            "variable \"v\" {\n default = 1\n defualt = 2\n}",
            "3:2: \"defualt\" is unknown in a variable (did you mean default?)",
        ),
        (
            "variable \"v\" {\n default = 1\n validation {}\n}",
            "3:2: a validation needs a condition",
        ),
        (
            "variable \"v\" {\n default = 1\n validation {\n condition = true\n error_message = \"M.\"\n }\n}",
            "4:14: the condition has to look at var.v",
        ),
        (
            "variable \"v\" {\n default = 1\n validation {\n condition = var.v == var.w\n error_message = \"M.\"\n }\n}",
            "4:23: the condition can refer to var.v alone",
        ),
        (
            "variable \"v\" {\n default = 1\n validation {\n condition = var.v > 1\n error_message = \"More.\"\n }\n}",
            "2:12: the value of \"v\" is not valid: More",
        ),
        ("variable \"v\" {\n type = strng\n default = 1\n}", "2:9: a type is string, number"),
        (
            "variable \"v\" {\n type = list\n default = 1\n}",
            "2:9: list needs the type of its elements",
        ),
        (
            "variable \"v\" {\n type = number\n default = \"x\"\n}",
            "3:12: default: a number is needed here, not \"x\"",
        ),
        ("variable \"a b\" { default = 1 }", "1:10: a variable's name may only have letters"),
        ("variables \"x\" {}", "1:11: variables takes no label"),
        ("variables {\n a {}\n}", "2:2: variables holds no blocks"),
        ("locals \"x\" {}", "1:8: locals takes no label"),
        ("locals {\n a {}\n}", "2:2: locals holds no blocks"),
        ("locals {\n unused = nope(1)\n}", "2:11: there is no function \"nope\""),
        ("vairable \"v\" {}", "1:1: \"vairable\" is unknown at the top … (did you mean variable?)"),
    ] {
        check(&format!("{text}\n{job}"), &[expected]);
    }
}

#[test]
fn what_is_not_hcl_is_reported_where_reading_stopped() {
    for (text, expected) in [
        ("job \"a\" {\n", "1:9: this { is never closed"),
        ("job \"a\" }\n", "1:9: } closes nothing"),
        ("job \"a\" {\n x = [1, 2}\n}", "2:11: } closes nothing; ] is expected"),
        ("job \"a\" {\n x = \"abc\n}", "2:6: this text is not closed on its line"),
        (
            "job \"a\" {\n x = <<EOT\nabc\n}\n",
            "2:6: this text is never closed; add a line that is only EOT",
        ),
        ("/* job", "1:1: this comment is never closed"),
        ("job \"a\" {\n x = 1 y = 2\n}", "2:8: cannot be read"),
        (
            "job \"a\" {\n x { a = 1 b = 2 }\n}",
            "2:12: a one-line block holds one attribute; put nested",
        ),
        ("job \"a\" {\n = 1\n}", "2:2: cannot be read"),
        ("", "1:1: the file is empty"),
        (" \n\t\n", "1:1: the file is empty"),
        ("# nothing\n", "1:1: there is no job in this file"),
        ("a\0b", "1:2: not a text file"),
    ] {
        check(text, &[expected]);
    }
}

#[test]
fn what_the_parser_cannot_read_is_explained_where_it_is_wrong() {
    for (text, expected) in [
        (
            "job \"a\" {\n env {\n  \"http.host\" = \"x\"\n }\n}",
            "3:3: the name of an attribute has no quotes; … env = { \"http.host\" = … }",
        ),
        ("job \"a\" {\n x = [\"dc1\"],\n y = 1\n}", "2:13: no comma follows an attribute"),
        (
            "job \"${CI_PROJECT_NAME}\" {\n}",
            "1:6: \"${CI_PROJECT_NAME}\" is not replaced in the label of a block; write the name itself",
        ),
        ("job 'a' {\n}", "1:5: a text must be in double quotes: \"a\""),
        ("job \"a\" {\n x = ['dc1']\n}", "2:7: a text must be in double quotes: \"dc1\""),
        ("job \"a\" {\n type: \"batch\"\n}", "2:6: an attribute is given with =, as in type = …"),
        (
            "job \"a\" {\n x = <<EOT\none %%{ is a text\n two \"%{host} %{DATA:x}\"\nEOT\n}",
            "4:7: %{ begins if, else, endif, for or endfor in a text, and \"host\" is none … write %%{ for a literal %{",
        ),
        (
            "job \"a\" {\n x = \"a %{host}\"\n}",
            "2:9: %{ begins if, else, endif, for or endfor in a text, and \"host\" is none … write %%{ for a literal %{",
        ),
    ] {
        check(text, &[expected]);
    }
}

#[test]
fn a_template_whose_text_cannot_be_had_is_not_reported_as_one_without_a_text() {
    let text = in_task("template {\ndata = nosuch\ndestination = \"local/x\"\n}");
    check(&text, &["6:8: a name without meaning here"]);
}

#[test]
fn attributes_given_twice_do_not_hide_other_problems() {
    check(
        "job \"a\" {\n priority = 1\n priority = 2\n priority = 3\n typ = 1\n}",
        &[
            "1:1: a job needs at least one group",
            "3:2: \"priority\" is given twice",
            "4:2: \"priority\" is given twice",
            "5:2: \"typ\" is unknown",
        ],
    );
}

#[test]
fn a_value_that_cannot_be_evaluated_is_not_reported_as_missing_too() {
    let text = in_task("").replace("driver = \"mock\"", "driver = mock");
    check(&text, &["4:10: a name without meaning here"]);
    let body = "constraint {\nattribute = x\nvalue = y\n}\nresources = z\nupdate = w";
    check(
        &in_task(body),
        &[
            "6:13: a name without meaning here",
            "7:9: a name without meaning here",
            "9:13: a name without meaning here",
            "10:1: \"update\" is unknown in a task",
            "10:10: a name without meaning here",
        ],
    );
}

#[test]
fn keys_of_an_object_given_twice_are_reported() {
    check(&in_task("env = { a = 1, \"a\" = 2 }"), &["5:16: \"a\" is given twice"]);
    check(&in_task("config {\nx = { a = 1, \"a\" = 2 }\n}"), &["6:14: \"a\" is given twice"]);
}

#[test]
fn a_task_can_not_take_the_name_of_the_shared_directory() {
    check(
        r#"job "j" {
  group "g" {
    task "alloc" {
      driver = "exec"
    }
  }
}
"#,
        &["3:10: a task cannot be called alloc: the shared directory has that name"],
    );
}

#[test]
fn what_cannot_be_a_namespace_is_refused_with_its_place() {
    let found = problems(&in_job("namespace = \"a b\""));
    let expected =
        "\"a b\" is not a valid namespace name: give 1 to 128 letters, digits and dashes";
    assert!(found.len() == 1 && found[0].ends_with(expected), "{found:?}");
}
