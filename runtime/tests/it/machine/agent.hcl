# An emulated processor takes long to compile.
plugin "exec" {
  grants {
    process = true
    users   = ["*"]
    isolation {
      processes_max = 64
    }
  }
  limits {
    compile_cpu  = "600s"
    compile_wall = "600s"
  }
}
gc {
  disk_usage_threshold  = 100
  inode_usage_threshold = 100
}
plugin "wasm" {
  enabled = false
}
plugin "mock" {
  enabled = false
}
plugin "files" {
  enabled = false
}
plugin "pci" {
  enabled = false
}
plugin "usb" {
  enabled = false
}
plugin "hwmon" {
  enabled = false
}
plugin "nvidia" {
  enabled = false
}
