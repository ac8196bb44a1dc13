variable "who" {
  type = string
}

job "canary" {
  datacenters = ["dc1"]
  group "g" {
    update {
      canary            = 1
      min_healthy_time  = "200ms"
      healthy_deadline  = "30s"
      progress_deadline = "60s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
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
