# Programs that nobody here wrote, as WASM tasks one after the other over files that they share.
#
#   cargo install --locked --target wasm32-wasip2 --root examples/bin/real ripgrep
#   cargo install --locked --target wasm32-wasip1 --root examples/bin/real jaq --version 1.6.0 \
#     --no-default-features
#   ostler run examples/jobs/pipeline.hcl --raw-exec
#
# What a task prints is kept in alloc/logs, where the next one reads it.
variable "programs" {
  default = "${job.dir}/../bin/real/bin"
}

job "pipeline" {
  type = "batch"

  group "steps" {
    # A native task brings the files. It reads outside its directories, so it is not isolated; with
    # driver exec the configuration would have to let jobs mount them.
    task "fetch" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "cat $1/plugins/*/src/*.rs > $NOMAD_ALLOC_DIR/data/source.txt", "sh", "${job.dir}/.."]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }

    task "search" {
      driver = "wasm"

      config {
        module = "${var.programs}/rg.wasm"
        args   = ["-N", "fn [a-z_]+[(]", "/alloc/data/source.txt"]
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }

    task "table" {
      driver = "wasm"

      lifecycle {
        hook = "poststop"
      }

      config {
        module = "${var.programs}/jaq.wasm"
        args   = ["-R", "-c", "{function: ., size: length}", "/alloc/logs/search.stdout.0"]
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
