who = "file"
