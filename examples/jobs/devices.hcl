# A task asks for a device, and for one with a certain property. Here the devices are files: each
# file of the directory that the `files` plugin was granted is one. Put more of them there, and raise
# the count:
#
#   ostler run examples/jobs/devices.hcl
#   ostler run --data-dir data examples/jobs/devices.hcl    (the devices are in data/devices)
#   ostler node status                                      (what this node has to assign)
#
# A GPU is asked for in the same way: device "nvidia/gpu" { … }
job "devices" {
  type = "batch"

  group "assigned" {
    task "show" {
      driver = "wasm"

      config {
        module = "${job.dir}/../bin/hello.wasm"
        args   = ["borrower"]
      }

      resources {
        cpu    = 100
        memory = 32

        # vendor/type; type alone or vendor/type/name would do as well.
        device "ostler/file" {
          count = 1

          constraint {
            attribute = "${device.model}"
            operator  = "regexp"
            value     = "^fi"
          }
        }
      }
    }
  }
}
