# The classic example job: redis as a native service on a port of this node that is free.
#
#   apt install redis-server          (once; any package that has /usr/bin/redis-server)
#   ostler run examples/jobs/redis.hcl
#
# The port is shown when the job is placed:  redis-cli -p PORT ping
# Ctrl-C stops it in order: redis gets SIGTERM, and is killed only if it is still there after 10 s.
job "redis" {
  type = "service"

  group "cache" {
    network {
      port "db" {}
    }

    task "redis" {
      driver = "exec"

      config {
        command = "/usr/bin/redis-server"
        args = [
          "--port", "${NOMAD_PORT_db}",
          "--bind", "${NOMAD_IP_db}",
          "--dir", "${NOMAD_ALLOC_DIR}/data",
        ]
      }

      kill_signal  = "SIGTERM"
      kill_timeout = "10s"

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
