# A service: a native web server that is restarted when it fails and is healthy only while it
# answers. Give it to an agent, look at it, follow it:
#
#     ostler agent --data-dir ./data &
#     ostler job run --data-dir ./data examples/jobs/service.hcl
#     ostler alloc status --data-dir ./data
#
# For a look at it alone, to its end: ostler run examples/jobs/service.hcl
job "web" {
  type = "service"

  group "web" {
    network {
      port "http" {}
    }

    # Two more attempts within a minute, then a pause, then again.
    restart {
      attempts = 2
      interval = "1m"
      delay    = "5s"
      mode     = "delay"
    }

    update {
      health_check     = "checks"
      min_healthy_time = "2s"
      healthy_deadline = "1m"
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "5s"
        timeout  = "2s"
      }
    }

    task "server" {
      driver = "exec"

      config {
        command = "/usr/bin/python3"
        args    = ["-u", "-m", "http.server", "--directory", "${NOMAD_TASK_DIR}", "${NOMAD_PORT_http}"]
      }

      # Python ends on SIGINT in order.
      kill_signal  = "SIGINT"
      kill_timeout = "5s"

      logs {
        max_files     = 3
        max_file_size = 1
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
