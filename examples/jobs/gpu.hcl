# A task that has one NVIDIA card to itself, kept apart from the node: of the cards of the machine it
# can open this one only. docs/nvidia.md says what the node needs.
#
#   ostler job plan examples/jobs/gpu.hcl    (which card, or why none)
#   ostler run examples/jobs/gpu.hcl
job "gpu" {
  type = "batch"

  group "g" {
    task "look" {
      driver = "exec"

      config {
        command = "nvidia-smi"
        args    = ["--query-gpu=name,uuid,memory.total,driver_version", "--format=csv"]
      }

      resources {
        cpu    = 500
        memory = 256

        device "nvidia/gpu" {
          count = 1

          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "8 GiB"
          }

          # Versions of drivers are no semantic versions: "version" reads them, "semver" does not.
          constraint {
            attribute = "${device.attr.driver_version}"
            operator  = "version"
            value     = ">= 450"
          }

          affinity {
            attribute = "${device.model}"
            operator  = "regexp"
            value     = "H[12]00"
            weight    = 50
          }
        }
      }
    }
  }
}
