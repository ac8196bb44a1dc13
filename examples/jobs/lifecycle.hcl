# Tasks before, beside and after the main task, of both kinds; they share the directory alloc/data.
#
#   ostler run examples/jobs/lifecycle.hcl
job "lifecycle" {
  type = "batch"

  group "steps" {
    # Must end well before the main task starts.
    task "prepare" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "seq 3 > $NOMAD_ALLOC_DIR/data/input; echo prepared"]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }

    # Runs as long as the main task does, and is stopped after it.
    task "beside" {
      driver = "exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }

    task "work" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"working with $(wc -l < $NOMAD_ALLOC_DIR/data/input) lines\""]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }

    # Starts when the main task is dead, whether it ended well or not.
    task "clean" {
      driver = "exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "rm $NOMAD_ALLOC_DIR/data/input; echo cleaned up"]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
