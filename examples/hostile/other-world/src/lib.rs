//! A component of a world that the agent does not know.

#[allow(missing_docs, unsafe_op_in_unsafe_fn, clippy::all, reason = "generated code")]
mod bindings {
    wit_bindgen::generate!({
        inline: "
            package hostile:other@1.0.0;

            world other {
                export greet: func() -> string;
            }
        ",
    });
}

struct Other;

impl bindings::Guest for Other {
    fn greet() -> String {
        "hello from another world".to_owned()
    }
}

bindings::export!(Other with_types_in bindings);
