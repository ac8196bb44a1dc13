name        = "small"
description = "for trials"
limit {
  region = "global"
  region_limit {
    cpu    = 2500
    memory = 1000
  }
}
