job "called" {
  parameterized {
    meta_required = ["who"]
  }
  datacenters = ["dc1"]
  type        = "batch"
  group "g" {
    task "before" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args    = ["done"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
