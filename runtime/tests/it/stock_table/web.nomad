variable "who" {
  type    = string
  default = "one"
}

job "web" {
  datacenters = ["dc1"]
  meta {
    owner = "somebody"
  }
  group "g" {
    network {
      port "http" {}
    }
    service {
      name = "page"
      port = "http"
      tags = ["plain"]
    }
    scaling {
      min     = 1
      max     = 3
      enabled = true
      policy {}
    }
    restart {
      attempts = 5
      delay    = "1s"
    }
    update {
      min_healthy_time  = "500ms"
      healthy_deadline  = "30s"
      progress_deadline = "60s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          echo first > local/said
          echo second >> local/said
          trap 'echo told' USR1
          echo out
          echo err >&2
          while true; do echo tick; echo tick >> local/said; sleep 0.2; done
        SCRIPT
        ]
      }
      env {
        WHO = var.who
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
