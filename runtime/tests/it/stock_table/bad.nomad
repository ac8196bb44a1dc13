job "bad" {
  datacenters = ["dc1"]
  group "g" {
    task "t" {
      config {
        command = "/bin/true"
      }
    }
  }
}
