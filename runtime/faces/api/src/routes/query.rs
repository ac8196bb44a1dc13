//! The keys of queries.

/// What the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// A text.
    Text,
    /// A whole number, 0 or more.
    Number,
    /// `true` or `false`.
    Flag,
}

/// Make [`QueryKey`] from a table: the description, the name, the text in the query and the kind of each.
macro_rules! query_keys {
    ($(#[doc = $doc:literal] $name:ident: $text:literal $kind:ident;)*) => {
        /// A key of a query.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum QueryKey {
            $(#[doc = $doc] $name,)*
        }

        impl QueryKey {
            /// The key as it stands in the query.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What its value is.
            #[must_use]
            pub const fn kind(self) -> QueryKind {
                match self { $(Self::$name => QueryKind::$kind,)* }
            }

            /// What it means, as a sentence.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => $doc.trim_ascii(),)* }
            }
        }
    };
}

query_keys! {
    /// The namespace of the objects; `*` for all of them where a list is read.
    Namespace: "namespace" Text;
    /// The beginning of the ids or names of the entries.
    Prefix: "prefix" Text;
    /// The most entries in the answer; 0 for all.
    PerPage: "per_page" Number;
    /// The first entry of the page, from the header `X-Nomad-NextToken` of the page before.
    NextToken: "next_token" Text;
    /// The index that the client has seen: the answer waits until there is a newer one.
    Index: "index" Number;
    /// How long the answer waits for a newer index, such as `30s`.
    Wait: "wait" Text;
    /// Whether the entries have their resources.
    Resources: "resources" Flag;
    /// Whether the answer has the differences between the versions.
    Diffs: "diffs" Flag;
    /// Whether the job is forgotten as soon as it has stopped.
    Purge: "purge" Flag;
    /// Whether tasks are stopped without their `shutdown_delay`.
    NoShutdownDelay: "no_shutdown_delay" Flag;
    /// The type of the policies; there is only `horizontal`.
    PolicyType: "type" Text;
    /// The id of a job.
    Job: "job" Text;
    /// The id of an allocation, or its beginning.
    Alloc: "alloc" Text;
    /// The name of a task.
    Task: "task" Text;
    /// The name of a plugin, of a device or of a deployment.
    Name: "name" Text;
    /// The command with its arguments, as a JSON list of texts.
    Command: "command" Text;
    /// Whether the command has a terminal.
    Tty: "tty" Flag;
    /// Whether the token comes in the first message of the WebSocket.
    WsHandshake: "ws_handshake" Flag;
    /// The output stream: `stdout` or `stderr`.
    StreamType: "type" Text;
    /// The path of a file or directory, relative to the directory of the allocation.
    Path: "path" Text;
    /// Where `offset` counts from: `start` or `end`.
    Origin: "origin" Text;
    /// The position of the first byte.
    Offset: "offset" Number;
    /// The most bytes that are sent.
    Limit: "limit" Number;
    /// Whether the answer goes on with what is added later.
    Follow: "follow" Flag;
    /// Whether the bytes come as they are, and not in frames of JSON.
    Plain: "plain" Flag;
    /// The topic of the events; for a stream also `TOPIC:KEY`, and as often as wanted.
    Topic: "topic" Text;
    /// Whether the stream also has the lines of the state of the node.
    Live: "live" Flag;
    /// The form of the metrics: `json` or `prometheus`.
    Format: "format" Text;
    /// The id of the node, or its beginning; there is only one.
    NodeId: "node_id" Text;
    /// The name of the server; there is only one.
    ServerId: "server_id" Text;
    /// The lowest level of the lines.
    LogLevel: "log_level" Text;
    /// Whether the lines are JSON.
    LogJson: "log_json" Flag;
    /// The most lines, counted from the last one.
    Lines: "lines" Number;
    /// The position after which the events are read.
    After: "after" Number;
    /// The time of the earliest event, as nanoseconds since 1970.
    Since: "since" Number;
    /// Whether only events with trouble are read.
    Trouble: "trouble" Flag;
    /// The index that the variable must be at; 0 if there must be none.
    Cas: "cas" Number;
    /// The name of the member.
    Node: "node" Text;
    /// The region; there is only `global`.
    Region: "region" Text;
    /// Whether the JSON is indented; the key alone says so.
    Pretty: "pretty" Flag;
}
