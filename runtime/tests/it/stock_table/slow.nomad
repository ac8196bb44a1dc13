variable "cpu" {
  type    = number
  default = 20
}

job "slow" {
  datacenters = ["dc1"]
  group "g" {
    update {
      min_healthy_time  = "5m"
      healthy_deadline  = "6m"
      progress_deadline = "7m"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["600"]
      }
      resources {
        cpu    = var.cpu
        memory = 32
      }
    }
  }
}
