# A TCP server as a WASM task. It may listen on the port this job gives it and on no other, and it
# can connect to nothing.
#
#   ostler run examples/jobs/kv.hcl
#
# The port is shown when the job is placed; the server speaks lines:
#
#   printf 'SET colour blue\nGET colour\nQUIT\n' | nc 127.0.0.1 PORT
job "kv" {
  type = "service"

  group "store" {
    network {
      port "db" {}
    }

    task "server" {
      driver = "wasm"

      config {
        module = "${job.dir}/../bin/kv-server.wasm"
        args   = ["db"]

        network {
          listen = true
        }
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
