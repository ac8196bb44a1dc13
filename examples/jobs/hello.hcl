# A first job: a WASM task and a native task in one group, and a device.
#
#   ostler run examples/jobs/hello.hcl
job "hello" {
  type = "batch"

  group "greeters" {
    # A component of wasi:cli/command. It sees its own directories and the device it was assigned,
    # and nothing else of this machine.
    task "wasm" {
      driver = "wasm"

      config {
        module = "${job.dir}/../bin/hello.wasm"
        args   = ["${node.unique.name}"]
      }

      resources {
        cpu    = 100
        memory = 32

        # Any one file of the directory that the `files` plugin was granted.
        device "ostler/file" {
          count = 1
        }
      }
    }

    # A program of this machine, started by the same agent through another sandboxed driver. It
    # runs isolated as far as this machine allows, and an event names what is lacking.
    task "native" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"hello from process $$, task $NOMAD_TASK_NAME of $NOMAD_JOB_NAME\""]
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
